package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Encode writes every setting as it is now, secrets too, in the form that Load reads
// from a file. It is for a process' own memory: never put it where others can read.
func (c *Config) Encode() []byte {
	var out strings.Builder
	for _, k := range c.keys() {
		if k.path != topicPath {
			fmt.Fprintf(&out, "%s = %s\n", k.path, k.quoted())
		}
	}
	for i := range c.Retention.Topic {
		fmt.Fprintf(&out, "[[%s]]\n", topicPath)
		for _, k := range fields("", reflect.ValueOf(&c.Retention.Topic[i]).Elem()) {
			fmt.Fprintf(&out, "%s = %s\n", k.path, k.quoted())
		}
	}
	return []byte(out.String())
}
