// Package crash holds the crash matrix: the real daemon, on a real mount and under a load that behaves like a broker, ends itself
// by SIGKILL before and after each durable step of package tier, is replaced by a fresh mount, and every byte is looked at.
//
// The daemon under test is built with the tag crashpoints; without it nothing of that is in the binary. What was acknowledged
// stands in a ledger in memory; an operation that the kill met may have happened or not. A step without a place in the matrix
// fails the test, and so does a point that is not reached. TIERFS_SOAK=1 kills 20 times at each point.
//
// The second half of the matrix ends the daemon alone: another one takes the mount over, and whoever uses it must not notice. No call
// fails, nothing is in doubt, and files that were open stay so. It runs in both modes of writing.
package crash
