// Package integration holds the black-box tests: the real binary on real mounts, an unmodified Kafka broker, both kinds of store,
// and what an operator or a crash does to them. The packages below it are its tools, shared with the demo and the benchmarks.
//
// Every test has a directory of its own and leaves no mount, no process and no file behind, also when it fails. TIERFS_SOAK=1
// makes outages longer and rounds more.
package integration
