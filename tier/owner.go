package tier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/objstore"
)

// ErrNotOwner: the store says that another instance owns the volume, or that this
// source is an older state of it. Such a source is read, but it uploads and
// deletes nothing.
var ErrNotOwner = errors.New("this source does not own its volume")

type ownerState struct {
	decided bool
	err     error // nil: this mount is the owner
}

// ownerRecord is the content of {prefix}/{volume}/owner.
type ownerRecord struct {
	Volume   string `json:"volume"`
	Instance string `json:"instance"`
	Epoch    uint64 `json:"epoch"`
	Nonce    string `json:"nonce"`
	Broker   string `json:"broker,omitempty"` // for people: what the broker calls itself
}

const (
	ownerName      = "owner"
	maxOwnerRecord = 64 << 10
)

// Owner tells whether this mount owns the volume: nil, ErrNotOwner with the
// reason, or another error while nobody could ask the store yet.
func (v *Volume) Owner() error {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if !v.owner.decided {
		return errors.New("the store has not been asked yet")
	}
	return v.owner.err
}

func (v *Volume) ownerKey() string {
	return joinKey(v.opt.Prefix, v.id.Name, ownerName)
}

func joinKey(parts ...string) string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, "/")
}

// CheckOwner makes sure that the store names this mount as the volume's owner. The
// first call of a mount claims the volume for the mount's epoch; later ones look
// again. It fails with [ErrNotOwner], or with the store's error.
func (v *Volume) CheckOwner(ctx context.Context) error {
	select {
	case v.asking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-v.asking }()
	v.mu.RLock()
	claimed := v.owner.decided && v.owner.err == nil
	v.mu.RUnlock()
	err := v.checkOwner(ctx, claimed)
	if err == nil || errors.Is(err, ErrNotOwner) {
		v.mu.Lock()
		v.owner = ownerState{true, err}
		v.mu.Unlock()
	}
	return err
}

func (v *Volume) checkOwner(ctx context.Context, claimed bool) error {
	have, err := v.readOwner(ctx)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return err
	}
	missing := err != nil
	id := v.Identity()
	switch {
	case !missing && have.Epoch == id.Epoch && have.Nonce == id.Nonce && have.Instance == id.Instance:
		return nil
	case claimed && !missing:
		return fmt.Errorf("%w: since this mount claimed it, %s was taken over by instance %s", ErrNotOwner, v.ownerKey(), have.Instance)
	case missing && id.previous.Claimed && !v.opt.TakeOwnership:
		return fmt.Errorf("%w: %s is gone, though this volume had it: is this the right store, and is it mounted? if it is, mount with --take-ownership",
			ErrNotOwner, v.ownerKey())
	case missing:
		return v.claim(ctx, true)
	case have.Volume != id.ID:
		return fmt.Errorf("%w: %s belongs to volume %s; set another store.prefix or store.volume", ErrNotOwner, v.ownerKey(), have.Volume)
	}
	reason := ""
	if have.Instance != id.Instance {
		reason = "it is a copy, or moved to another machine or disk"
	} else if !slices.Contains(id.previous.Ours, have.Nonce) {
		reason = fmt.Sprintf("it is an older state: epoch %d, the store has seen %d", id.previous.Epoch, have.Epoch)
	}
	if reason == "" {
		return v.claim(ctx, false)
	}
	if !v.opt.TakeOwnership {
		return fmt.Errorf("%w: %s; if the original is gone for good, mount with --take-ownership", ErrNotOwner, reason)
	}
	v.log.Warn("taking the volume over", "reason", reason, "from", have.Instance)
	if have.Epoch >= id.Epoch {
		v.setEpoch(have.Epoch + 1)
	}
	return v.claim(ctx, false)
}

// claim writes this mount's epoch into the store and reads it back: of two that
// claim at once, the last to write stays.
func (v *Volume) claim(ctx context.Context, first bool) error {
	id := v.Identity()
	want := ownerRecord{
		Volume: id.ID, Instance: id.Instance, Epoch: id.Epoch, Nonce: id.Nonce, Broker: v.brokerName(),
	}
	b, err := json.Marshal(want)
	if err != nil {
		return err
	}
	// Here before there: the store never has a nonce that this disk does not know.
	err = v.saveEpoch("epoch:local", id.previous.Claimed, append(slices.Clone(id.previous.Ours), id.Nonce)...)
	if err != nil {
		return err
	}
	err = v.point("epoch:store", func() error {
		return v.opt.Store.Put(ctx, v.ownerKey(), objstore.BytesBody(b), objstore.PutOptions{IfAbsent: first})
	})
	if err != nil && !errors.Is(err, objstore.ErrExists) {
		return err
	}
	have, err := v.readOwner(ctx)
	if err != nil {
		return err
	}
	if have != want {
		return fmt.Errorf("%w: instance %s claimed it at the same time", ErrNotOwner, have.Instance)
	}
	return v.saveEpoch("epoch:claimed", true, id.Nonce)
}

func (v *Volume) readOwner(ctx context.Context) (ownerRecord, error) {
	var rec ownerRecord
	key := v.ownerKey()
	if v.opt.Store == nil {
		return rec, fmt.Errorf("%w: no store is configured", ErrUnavailable)
	}
	info, err := v.opt.Store.Head(ctx, key)
	if err != nil {
		return rec, err
	}
	if info.Size <= 0 || info.Size > maxOwnerRecord {
		return rec, fmt.Errorf("%w: %s is not an owner record", ErrNotOwner, key)
	}
	b, err := fetch(ctx, v.opt.Store, key, info.Size)
	if err != nil {
		return rec, err
	}
	if rec, err = parseOwner(b); err != nil {
		return rec, fmt.Errorf("%w: %s is not an owner record", ErrNotOwner, key)
	}
	return rec, nil
}

// parseOwner reads what claim wrote: one JSON object and nothing else.
func parseOwner(b []byte) (ownerRecord, error) {
	var rec ownerRecord
	err := json.Unmarshal(b, &rec)
	return rec, err
}

// brokerName is what the broker calls itself, for people who read the owner
// object: nothing is decided by it.
func (v *Volume) brokerName() string {
	b, err := durable.ReadFile(v.root, "meta.properties", 4<<10)
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(b)), " ")
}
