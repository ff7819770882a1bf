package tier

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
)

const (
	volumeFile = "volume"
	epochFile  = "epoch"
	rootFile   = "root"

	maxStateFile = 64 << 10
)

// Identity is who a volume is. Nothing in it comes from the broker.
type Identity struct {
	ID   string `json:"id"`   // 32 hex digits
	Name string `json:"name"` // in keys; the id unless a name was configured at minting
	// Instance is the place where this source lives: a copy is another instance.
	Instance string `json:"-"`
	Epoch    uint64 `json:"-"` // of this mount
	Nonce    string `json:"-"` // of this mount
	previous epochState
}

type epochState struct {
	Epoch uint64 `json:"epoch"`
	Nonce string `json:"nonce"`
	// Claimed: the store has had an owner object of this volume.
	Claimed bool `json:"claimed,omitempty"`
	// Ours are the nonces that the owner object may have: see saveEpoch.
	Ours []string `json:"ours,omitempty"`
}

// RootAttr are the attributes of the volume's root as the broker sees them; the
// directory below is closed to everyone but root.
type RootAttr struct {
	Mode uint32 `json:"mode"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
}

type registryEntry struct {
	Prefix string      `json:"prefix"` // of the partition's keys, with the incarnation
	Path   string      `json:"path"`   // at minting
	Layout layout.Kind `json:"layout"`
}

var volumeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// ValidName reports whether a volume may be called so: up to 63 letters, digits,
// '.', '_' and '-', a letter or digit first. The name is a part of keys.
func ValidName(name string) bool { return volumeName.MatchString(name) }

// Identity returns who the volume is.
func (v *Volume) Identity() Identity {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.id
}

func (v *Volume) loadIdentity() error {
	err := v.readState(volumeFile, &v.id, "restore it from a backup")
	if errors.Is(err, fs.ErrNotExist) {
		err = v.mint()
	}
	if err != nil {
		return err
	}
	if !v.id.valid() {
		return fmt.Errorf("%s/%s: not a volume's identity; restore the file from a backup", stateDir, volumeFile)
	}
	if v.opt.Name != "" && v.opt.Name != v.id.Name {
		return fmt.Errorf("store.volume is %q, but this source was minted as %q; its name cannot change", v.opt.Name, v.id.Name)
	}
	if v.id.Instance, err = v.instance(); err != nil {
		return err
	}
	return v.raiseEpoch()
}

// valid reports whether this can be what mint wrote.
func (id Identity) valid() bool {
	_, err := hex.DecodeString(id.ID)
	return err == nil && len(id.ID) == 32 && ValidName(id.Name)
}

// mint makes the identity of a volume that has none. One that has partitions had
// one: a new one would leave their objects without an owner.
func (v *Volume) mint() error {
	switch names, err := readNames(v.dirs.partitions); {
	case err != nil:
		return err
	case len(names) > 0:
		return fmt.Errorf("%s/%s is missing, and %[1]s/partitions is not empty; restore it from a backup", stateDir, volumeFile)
	}
	id := randomHex(16)
	name := v.opt.Name
	if name == "" {
		name = id
	}
	if !ValidName(name) {
		return fmt.Errorf("store.volume %q: use up to 63 letters, digits, '.', '_' and '-', a letter or digit first", name)
	}
	v.id = Identity{ID: id, Name: name}
	return v.step("mint:volume", func() error { return createJSON(v.dirs.base, volumeFile, v.id) })
}

// raiseEpoch picks this mount's epoch. It becomes durable with the claim: a mount
// that claims nothing leaves no trace, and a full disk does not stop one.
func (v *Volume) raiseEpoch() error {
	remedy := "restore it from a backup, or remove it and mount with --take-ownership"
	if err := v.readState(epochFile, &v.id.previous, remedy); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	v.setEpoch(v.id.previous.Epoch + 1)
	return nil
}

func (v *Volume) setEpoch(epoch uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.id.Epoch, v.id.Nonce = epoch, randomHex(8)
}

// saveEpoch keeps this mount's epoch, with the nonces that the owner object may
// have: that of the last claim that succeeded, and those of the claims tried since.
func (v *Volume) saveEpoch(step string, claimed bool, nonces ...string) error {
	id := v.Identity()
	return v.step(step, func() error {
		return writeJSON(v.dirs.base, epochFile, epochState{id.Epoch, id.Nonce, claimed, nonces})
	})
}

// instance names the machine, the file system and the inode of the identity: a
// copied source, a clone of the disk in another machine and a restored archive
// all differ.
func (v *Volume) instance() (string, error) {
	h, err := handle.At(v.dirs.base, volumeFile)
	if err != nil {
		return "", fmt.Errorf("handle of %s/%s: %w", stateDir, volumeFile, err)
	}
	var fsys unix.Statfs_t
	if err := unix.Fstatfs(v.root, &fsys); err != nil {
		return "", fmt.Errorf("statfs of the source: %w", err)
	}
	machine, err := os.ReadFile("/etc/machine-id")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return fmt.Sprintf("%s/%08x%08x/%s", strings.TrimSpace(string(machine)),
		uint32(fsys.Fsid.Val[0]), uint32(fsys.Fsid.Val[1]), h), nil
}

// RootAttr returns the attributes that the broker sees at the root. Before the
// first SetRootAttr they are those of the directory itself.
func (v *Volume) RootAttr() (RootAttr, error) {
	var a RootAttr
	err := v.readState(rootFile, &a, "restore it from a backup, or remove it and set mode and owner of the mount's root anew")
	if !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(v.root, &st); err != nil {
		return a, fmt.Errorf("stat of the source: %w", err)
	}
	return RootAttr{Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid}, nil
}

// SetRootAttr keeps the attributes that the broker sees at the root, durably.
func (v *Volume) SetRootAttr(a RootAttr) error {
	return v.step("root:attr", func() error { return writeJSON(v.dirs.base, rootFile, a) })
}

// CloseSource keeps the root's attributes for the broker's eyes and closes the
// directory below to everyone but root, so that no broker starts on it bare.
func (v *Volume) CloseSource() error {
	a, err := v.RootAttr()
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := fstatat(v.dirs.base, rootFile, &st); err != nil { // what was kept before needs no room
		if err := v.SetRootAttr(a); err != nil {
			return err
		}
	}
	if err := unix.Fchown(v.root, 0, 0); err != nil {
		return fmt.Errorf("chown of the source: %w", err)
	}
	if err := unix.Fchmod(v.root, 0o700); err != nil {
		return fmt.Errorf("chmod of the source: %w", err)
	}
	return durable.SyncDir(v.root)
}

func (v *Volume) loadRegistry() error {
	names, err := readNames(v.dirs.partitions)
	if err != nil {
		return err
	}
	for _, name := range names {
		inc, err := marker.ParseIncarnation(name)
		if err != nil {
			v.log.Warn("stranger in the registry", "file", stateDir+"/partitions/"+name)
			continue
		}
		var e registryEntry
		if err = readJSON(v.dirs.partitions, name, &e); err == nil && !e.of(inc) {
			err = fmt.Errorf("it has the prefix %q", e.Prefix)
		}
		if err != nil {
			v.log.Error("an entry of the registry cannot be read: what it explains is quarantined until it is restored from a backup",
				"file", stateDir+"/partitions/"+name, "err", err)
			continue
		}
		v.registry[inc] = e
	}
	return nil
}

// of reports whether this can be what register wrote for an incarnation.
func (e registryEntry) of(inc marker.Incarnation) bool {
	return strings.HasSuffix("/"+e.Prefix, "/"+inc.String())
}

// register mints an incarnation for a partition: the registry first, so that a
// record can never name an incarnation that nothing explains.
func (v *Volume) register(path string, kind layout.Kind) (marker.Incarnation, error) {
	inc := marker.NewIncarnation()
	e := registryEntry{
		Prefix: joinKey(v.opt.Prefix, v.id.Name, keyPath(path), inc.String()),
		Path:   path, Layout: kind,
	}
	err := v.step("mint:registry", func() error { return createJSON(v.dirs.partitions, inc.String(), e) })
	if err != nil {
		return inc, err
	}
	v.mu.Lock()
	v.registry[inc] = e
	v.mu.Unlock()
	return inc, nil
}

// keyPath makes a directory's path fit for a key. It is there for people: the
// incarnation alone makes the key unique. A directory called like the owner object
// would be an object and a directory at once in stores that are directories.
func keyPath(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		p = strings.Map(func(r rune) rune {
			if r <= ' ' || r >= 0x7f {
				return '_'
			}
			return r
		}, p)
		parts[i] = p[:min(len(p), 200)]
	}
	if parts[0] == ownerName {
		parts[0] += "_"
	}
	return strings.Join(parts, "/")
}

// key returns where a record's object is, with the suffix of the file: ".log" for
// the segment, ".index" and so on for the files beside it.
func (v *Volume) key(rec marker.Record, suffix string) (string, error) {
	v.mu.RLock()
	e, ok := v.registry[rec.Incarnation]
	v.mu.RUnlock()
	if !ok {
		return "", fmt.Errorf("%w: incarnation %s is not in the registry", ErrQuarantined, rec.Incarnation)
	}
	return fmt.Sprintf("%s/%020d-%s%s", e.Prefix, rec.Start, rec.UploadID, suffix), nil
}

// readState reads one of the volume's own files. What is wrong with it is said
// together with what to do.
func (v *Volume) readState(name string, into any, remedy string) error {
	err := readJSON(v.dirs.base, name, into)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fmt.Errorf("%s/%s cannot be read: %w; %s", stateDir, name, err, remedy)
}

func readJSON(dir int, name string, into any) error {
	b, err := durable.ReadFile(dir, name, maxStateFile)
	if err != nil {
		return err
	}
	return parseJSON(name, b, into)
}

// parseJSON reads what writeJSON or createJSON wrote to a file of that name.
func parseJSON(name string, b []byte, into any) error {
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func writeJSON(dir int, name string, from any) error {
	b, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return durable.WriteFile(dir, name, append(b, '\n'), 0o600)
}

func createJSON(dir int, name string, from any) error {
	b, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return durable.CreateFile(dir, name, append(b, '\n'), 0o600)
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails, see its doc
	return hex.EncodeToString(b)
}
