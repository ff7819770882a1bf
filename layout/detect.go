package layout

import (
	"slices"
	"strings"

	"github.com/tierfs/tierfs/segment"
)

// maxLooked is how many directories below the root Detect looks into.
const maxLooked = 1000

// Detect says by the names in the root and one level below which layout a volume has. names gives the names in a
// directory, by its path from the volume root, "" for the root itself; its errors, as for a name that is no directory,
// count as no names. ok is false while there are no signs, or none that tell layouts apart: a wrong guess could evict
// what a broker still needs.
//
// Kafka shows by its files in the root, or by those in a TOPIC-N directory; Iggy by numbered streams with topics;
// generic by segments that lie in the root or in directories that neither would make.
func Detect(names func(dir string) ([]string, error)) (kind Kind, ok bool) {
	list := func(dir string) []string {
		found, err := names(dir)
		if err != nil {
			return nil
		}
		return found
	}
	root := list("")
	if slices.ContainsFunc(root, kafkaRootFile) {
		return Kafka, true
	}
	if slices.Contains(root, "streams") && iggyRoot(root, list("streams")) {
		return Iggy, true
	}
	return detectBelow(root, list)
}

// detectBelow goes by what the directories of the root hold.
func detectBelow(root []string, list func(string) []string) (Kind, bool) {
	generic, unclear := slices.ContainsFunc(root, isLog), false
	looked := 0
	for _, name := range root {
		_, _, stem := segment.ParseStem(name)
		if stem || strings.HasPrefix(name, ".") {
			continue
		}
		if looked++; looked > maxLooked {
			break
		}
		below := list(name)
		_, kafkaName := kafkaPartition(name)
		switch {
		case decimal(name) && slices.Contains(below, "topics"):
			return Iggy, true
		case kafkaName && slices.ContainsFunc(below, kafkaPartitionFile):
			return Kafka, true
		case slices.ContainsFunc(below, isLog):
			generic = true
			unclear = unclear || kafkaName
		}
	}
	if generic && !unclear {
		return Generic, true
	}
	return "", false
}

// kafkaRootFile names the files that only Kafka puts into the root of a log dir.
func kafkaRootFile(name string) bool {
	switch name {
	case "meta.properties", ".kafka_cleanshutdown", recoveryPointFile, highWatermarkFile,
		"log-start-offset-checkpoint", "cleaner-offset-checkpoint":
		return true
	}
	return false
}

// kafkaPartitionFile names the files that only Kafka puts into a partition.
func kafkaPartitionFile(name string) bool {
	return name == "partition.metadata" || name == "leader-epoch-checkpoint"
}

// iggyRoot says whether a root that holds streams is Iggy's, with no stream made yet or with some.
func iggyRoot(root, streams []string) bool {
	if slices.ContainsFunc(streams, func(name string) bool { return !decimal(name) }) {
		return false
	}
	return len(streams) > 0 || slices.Contains(root, "metadata") || slices.Contains(root, "state") || slices.Contains(root, "runtime")
}

func isLog(name string) bool {
	_, suffix, ok := segment.ParseStem(name)
	return ok && suffix == ".log"
}
