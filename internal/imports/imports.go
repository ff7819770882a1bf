// Package imports holds the order in which the packages of this module may import each other. It has no other content: its
// test reads the imports of every Go file of the module and compares them with the order below.
//
// The rule: a package imports only packages that stand on a lower floor. Two packages on one floor never see each other, so
// a floor can be read, tested and replaced without its neighbours.
package imports

// floors lists the packages by their path within the module, ground floor first. A package that is missing here fails
// the test until it has been given its place.
var floors = [][]string{
	{"metrics", "durable", "handle", "mountinfo"},
	{"segment", "holder"},
	{"segment/segmenttest"},
	{"layout"},
	{"objstore"},
	{"objstore/storetest", "objstore/s3/s3test"},
	{"objstore/dirstore", "objstore/s3", "objstore/sim"},
	{"objstore/backend"},
	{"marker"},
	{"chunkcache", "tier/tiertest"},
	{"tier"},
	{"upload", "fs"},
	{"config"},
	{"admin"},
	{"cmd/tierfs"},
	{"integration/child", "integration/proxy"},
	{"integration/daemon", "integration/kafka"},
	{"integration/rig"},
	{"integration", "integration/bench", "integration/crash", "integration/demo", "integration/powercut"},
	{"internal/imports"},
}

// onlyFor names, for a module from outside, the packages that may know it. Everything else reaches it through them.
var onlyFor = map[string][]string{
	"github.com/hanwen/go-fuse/":          {"fs", "integration/powercut"},
	"github.com/aws/":                     {"objstore/s3", "objstore/s3/s3test"},
	"github.com/versity/":                 {"objstore/s3/s3test"},
	"github.com/prometheus/client_golang": {"metrics", "admin", "cmd/tierfs"},
	"github.com/BurntSushi/toml":          {"config"},
	"github.com/spf13/cobra":              {"cmd/tierfs"},
}

// testOnly names the packages that exist for tests: nothing that is linked into the daemon imports them.
var testOnly = []string{"segment/segmenttest", "objstore/storetest", "objstore/s3/s3test", "tier/tiertest"}
