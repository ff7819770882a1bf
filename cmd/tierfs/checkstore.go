package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/mountinfo"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/tier"
)

// objects looks for every object that a record names: a listing for each
// partition, which is a request for each 1000 objects, and a HEAD only for what
// the listing does not have.
func (c *checker) objects(ctx context.Context) error {
	total := int64(0)
	for _, objects := range c.expected {
		total += int64(len(objects))
	}
	for _, prefix := range slices.Sorted(maps.Keys(c.expected)) {
		sizes, err := c.list(ctx, prefix)
		if err != nil {
			return fmt.Errorf("list %s: %w", prefix, err)
		}
		objects := c.expected[prefix]
		for _, key := range slices.Sorted(maps.Keys(objects)) {
			if err := c.object(ctx, key, objects[key], sizes); err != nil {
				return err
			}
			if c.deep {
				c.progress(admin.Progress{Done: c.result.Objects, Total: total})
			}
		}
		if !c.deep {
			c.progress(admin.Progress{Done: c.result.Objects, Total: total})
		}
	}
	return nil
}

func (c *checker) list(ctx context.Context, prefix string) (map[string]int64, error) {
	sizes := make(map[string]int64)
	after := ""
	for {
		page, err := c.store.List(ctx, prefix, after)
		if err != nil {
			return nil, err
		}
		for _, o := range page.Objects {
			sizes[o.Key], after = o.Size, o.Key
		}
		if !page.More {
			return sizes, nil
		}
	}
}

// object checks one object against what its record says.
func (c *checker) object(ctx context.Context, key string, w want, sizes map[string]int64) error {
	c.result.Objects++
	size, ok := sizes[key]
	if !ok {
		info, err := c.store.Head(ctx, key)
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			c.missing(key, w)
			return nil
		case err != nil:
			return fmt.Errorf("look for %s: %w", key, err)
		}
		size = info.Size
	}
	if size == w.size && c.deep {
		return c.deepObject(ctx, key, w)
	}
	if size != w.size {
		c.found(w.path, fmt.Sprintf("its object %s has %d bytes; it should have %d", key, size, w.size), "restore the object")
	}
	return nil
}

// missing notes an object that is not there, if it should be.
func (c *checker) missing(key string, w want) {
	if c.still(w) {
		c.found(w.path, "its object "+key+" is not in the store", "restore the object; a segment that is still local can be uploaded again")
	}
}

// still says whether the record still names the object: while the check ran the
// broker may have deleted or changed the segment.
func (c *checker) still(w want) bool {
	dir, err := c.dirOf(w.path)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	rec, err := marker.Read(dir, path.Base(w.path))
	return err == nil && rec.UploadID == w.record.UploadID
}

// dirOf opens the directory of a record. The caller closes it.
func (c *checker) dirOf(at string) (int, error) {
	return unix.Openat(c.root, path.Dir(at), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

func (p *program) checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check SOURCE",
		Short: "Look for records, segments and objects that are wrong or missing; mounted or not",
		Args:  between(1, 1),
	}
	flags := addSettingFlags(cmd)
	var what admin.CheckRequest
	cmd.Flags().BoolVar(&what.Deep, "deep", false, "read every byte too, of the sealed segments and of the objects")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return interruptible(cmd.Context(), func(ctx context.Context) error { return p.check(ctx, flags, args[0], what) })
	}
	return cmd
}

// check asks the daemon if the path is mounted, and looks itself otherwise.
func (p *program) check(ctx context.Context, flags *settingFlags, source string, what admin.CheckRequest) error {
	m, mounted, err := mountinfo.At(source)
	if err != nil {
		return err
	}
	bar := p.progress("checking")
	report := func(f admin.Finding) {
		_ = bar.Clear() // an error means that nobody looks
		fmt.Fprintf(p.stdout, "%s: %s; %s\n", f.Path, f.Problem, f.Remedy)
	}
	progress := func(done admin.Progress) {
		bar.ChangeMax64(max(done.Total, 1))
		_ = bar.Set64(done.Done) // as above
	}
	var result admin.CheckResult
	if mounted && m.Type == mountinfo.FSType {
		result, err = admin.NewClient(p.runDir, m.Source).Check(ctx, what, report, progress)
	} else {
		result, err = p.checkOffline(ctx, flags, source, what, report, progress)
	}
	if err = errors.Join(err, bar.Exit()); err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%d partitions, %d records, %d objects: %d findings\n", result.Partitions, result.Records, result.Objects, result.Findings)
	if result.Findings > 0 {
		return errFound
	}
	return nil
}

func (p *program) checkOffline(
	ctx context.Context, flags *settingFlags, source string, what admin.CheckRequest, report func(admin.Finding), progress func(admin.Progress),
) (result admin.CheckResult, err error) {
	c, err := flags.load(p, config.Setting{Path: "mount.source", Value: source, Where: "SOURCE"})
	if err != nil {
		return result, err
	}
	if err := mustBeDirectory(source); err != nil {
		return result, err
	}
	store, _, err := openStore(ctx, c, slog.New(slog.DiscardHandler))
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, closeStore(store)) }()
	root, err := unix.Open(source, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return result, fmt.Errorf("%s: %w", source, err)
	}
	defer unix.Close(root)
	rules, err := tier.LayoutOf(root, layoutOf(c), c.Mount.GenericQuietTime.Std())
	if err != nil {
		return result, fmt.Errorf("%s: %w", source, err)
	}
	check := &checker{root: root, store: brief(store, nil), rules: rules, deep: what.Deep, report: report, progress: progress}
	result, err = check.run(ctx)
	if err != nil {
		return result, fmt.Errorf("%s: %w", source, err)
	}
	return result, nil
}
