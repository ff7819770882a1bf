package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Line is one setting as `tierfs config` shows it.
type Line struct {
	Path   string
	Value  string // as the file would have it; "***" for a secret that is set
	Origin Origin
	Idle   bool // accepted, but without effect in this version
}

// Lines lists all settings, entries of retention.topic one by one.
func (c *Config) Lines() []Line {
	var lines []Line
	keys := c.keys()
	for _, k := range keys {
		if k.path != topicPath {
			lines = append(lines, Line{k.path, k.shown(k.quoted()), c.Origin(k.path), isIdle(k.path)})
			continue
		}
		for i := range c.Retention.Topic {
			prefix := fmt.Sprintf("%s.%d.", topicPath, i)
			for _, k := range fields(prefix, reflect.ValueOf(&c.Retention.Topic[i]).Elem()) {
				lines = append(lines, Line{k.path, k.quoted(), c.Origin(k.path), false})
			}
		}
	}
	return lines
}

// idle are the settings that are accepted, and have no effect in this version:
// paths, or what paths begin with.
var idle = []string{
	"store.part_size", "store.gcs.", "store.azure.",
	"fetch.bandwidth", "fetch.deny",
	"retention.delete_pending_per_partition",
	"housekeeping.",
}

func isIdle(path string) bool {
	return slices.ContainsFunc(idle, func(p string) bool {
		return path == p || strings.HasSuffix(p, ".") && strings.HasPrefix(path, p)
	})
}

// Idle lists the settings that somebody set and that have no effect in this
// version, so that nobody relies on them.
func (c *Config) Idle() []Line {
	var lines []Line
	for _, l := range c.Lines() {
		if l.Idle && l.Origin.Source != FromDefault {
			lines = append(lines, l)
		}
	}
	return lines
}

// Origin says where the value of a key came from.
func (c *Config) Origin(path string) Origin {
	if o, ok := c.origins[path]; ok {
		return o
	}
	return Origin{Source: FromDefault}
}

// quoted writes the field's value as the file would have it.
func (k key) quoted() string {
	switch v := k.field.Interface().(type) {
	case bool, int:
		return k.text()
	case Count:
		if v != CountAuto {
			return k.text()
		}
	case []string:
		s := ""
		for i, item := range v {
			if i > 0 {
				s += ", "
			}
			s += strconv.Quote(item)
		}
		return "[" + s + "]"
	}
	return strconv.Quote(k.text())
}

// Key describes one setting for a command line.
type Key struct {
	Path    string // "cache.chunk_size"
	Flag    string // "cache-chunk-size"
	Env     string // "TIERFS_CACHE_CHUNK_SIZE"
	Default string
	Bool    bool // a flag without a value means true
	Secret  bool // does not belong on a command line, where others see it
}

// Keys lists all settings that one value can set.
func Keys() []Key {
	var list []Key
	for _, k := range Default().keys() {
		if k.path == topicPath {
			continue
		}
		_, isBool := k.field.Interface().(bool)
		list = append(list, Key{k.path, k.flag(), k.env(), k.text(), isBool, k.secret == "whole"})
	}
	return list
}
