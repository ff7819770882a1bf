package tier

import (
	"strings"

	"github.com/tierfs/tierfs/segment"
)

const (
	stateDir      = ".tierfs"
	partitionFile = ".tierfs-partition"
	lockFile      = "lock"

	hiddenPrefix   = ".tierfs"
	twinPrefix     = ".tierfs-twin-" // a marker that was set aside
	remoteSuffix   = ".remote"
	uploadedSuffix = ".uploaded"
	logSuffix      = ".log"
	indexSuffix    = ".index" // while the layout is not known
)

// Hidden reports whether a name does not exist through the mount: it cannot be
// seen, opened or made there, because tierfs keeps its own state under it.
func Hidden(name string) bool {
	return strings.HasPrefix(name, hiddenPrefix) ||
		strings.HasSuffix(name, remoteSuffix) ||
		strings.HasSuffix(name, uploadedSuffix)
}

// segmentStart returns the start offset of a name that is a segment's own, N.log.
func segmentStart(name string) (uint64, bool) {
	start, suffix, ok := segment.ParseStem(name)
	return start, ok && suffix == logSuffix
}

// markerBase is what a marker of the visible name is called, without its suffix:
// N for N.log, the whole name for every other. A name that is a bare stem would
// meet N.log's marker, so it gets a suffix that no visible name can have.
func markerBase(name string) string {
	start, suffix, ok := segment.ParseStem(name)
	switch {
	case ok && suffix == logSuffix:
		return segment.Stem(start)
	case ok && suffix == "":
		return name + remoteSuffix
	}
	return name
}

// visibleOfBase undoes markerBase.
func visibleOfBase(base string) string {
	if _, suffix, ok := segment.ParseStem(base); ok && suffix == "" {
		return base + logSuffix
	}
	return strings.TrimSuffix(base, remoteSuffix)
}

func remoteName(name string) string   { return markerBase(name) + remoteSuffix }
func uploadedName(name string) string { return markerBase(name) + uploadedSuffix }

// visibleOfRemote returns the name that the broker sees for a name below, if the
// name below is a remote segment's.
func visibleOfRemote(below string) (string, bool) {
	if strings.HasPrefix(below, hiddenPrefix) || !strings.HasSuffix(below, remoteSuffix) {
		return "", false
	}
	return visibleOfBase(strings.TrimSuffix(below, remoteSuffix)), true
}

// visibleOfUploaded is visibleOfRemote for the record beside a local file.
func visibleOfUploaded(below string) (string, bool) {
	if strings.HasPrefix(below, hiddenPrefix) || !strings.HasSuffix(below, uploadedSuffix) {
		return "", false
	}
	return visibleOfBase(strings.TrimSuffix(below, uploadedSuffix)), true
}

// Visible returns the name under which a directory entry below is seen through
// the mount; false when it is not seen at all.
func Visible(below string) (string, bool) {
	if name, ok := visibleOfRemote(below); ok {
		return name, true
	}
	return below, !Hidden(below)
}
