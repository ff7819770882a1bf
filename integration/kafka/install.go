// Package kafka runs an unmodified Apache Kafka for tests, demo and benchmarks: a broker that is its own controller (KRaft, one
// process), or brokers that follow a controller of their own, and a client that produces records with known contents and compares
// every byte that it reads back.
//
// The jars and the compiled client (driver/*.java) are put under build/kafka by `make setup`. Everything listens on loopback only.
package kafka

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Install says where Kafka's jars and the client's classes are.
type Install struct {
	classpath string
	log4j     string
}

// Locate finds the installation below the module that the current directory belongs to.
func Locate() (Install, error) {
	root, err := ModuleRoot()
	if err != nil {
		return Install{}, err
	}
	libs, classes := filepath.Join(root, "build/kafka/libs"), filepath.Join(root, "build/kafka/classes")
	for _, dir := range []string{libs, classes} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) == 0 {
			return Install{}, fmt.Errorf("nothing in %s: run `make setup`", dir)
		}
	}
	return Install{
		classpath: classes + ":" + libs + "/*",
		log4j:     filepath.Join(root, "integration/kafka/log4j2.xml"),
	}, nil
}

// ModuleRoot is the directory of the go.mod above the current directory.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("not inside the module: no go.mod above the current directory")
		}
		dir = up
	}
}

// java builds the command line of a JVM with Kafka on its class path.
func (i Install) java(logLevel string, flags []string, main string, args ...string) *exec.Cmd {
	line := append([]string{}, flags...)
	line = append(line, "-cp", i.classpath, "-Dlog4j2.configurationFile="+i.log4j, "-Dlog.level="+logLevel, main)
	return exec.Command("java", append(line, args...)...)
}

// quick are JVM flags for processes that live for seconds to minutes on few cores: no second compiler, the smallest collector.
func quick(heap string) []string {
	return []string{"-Xms64m", "-Xmx" + heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"}
}

// steady are JVM flags for measurements: everything as an operator would have it.
func steady(heap string) []string { return []string{"-Xms" + heap, "-Xmx" + heap} }
