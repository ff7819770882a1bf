package config

import (
	"fmt"
	"reflect"
	"strings"
)

// topicPath is the key of the list of topics.
const topicPath = "retention.topic"

// For returns the retention of a topic: the first entry whose name matches, or
// the defaults. An Iggy topic is "stream/topic".
func (r *Retention) For(topic string) Topic {
	for _, t := range r.Topic {
		if Match(t.Name, topic) {
			return t
		}
	}
	return r.defaultTopic()
}

func (r *Retention) defaultTopic() Topic {
	return Topic{
		Name:               "*",
		TieredStorage:      r.TieredStorage,
		LocalRetentionAge:  r.DefaultLocalRetentionAge,
		LocalRetentionSize: r.DefaultLocalRetentionSize,
	}
}

// Match says whether the whole of name matches pattern, in which * stands for
// any characters, "/" and none included, and ? for one.
func Match(pattern, name string) bool {
	star, mark := -1, 0
	p, n := 0, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, n
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
			p++
			n++
		case star >= 0: // let the last * take one more
			mark++
			p, n = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// setTopics keeps a source's list until all sources are read: a stronger
// source replaces the list, and an entry inherits the defaults as they are then.
func (l *loader) setTopics(v any, origin func(path string) Origin) error {
	tables, ok := topicList(v)
	if !ok {
		return &Error{
			Where: origin(topicPath).Where, Key: topicPath, Problem: "is not a list of tables",
			Remedy: "start each entry with [[retention.topic]]",
		}
	}
	l.topicTables, l.topicOrigin = tables, origin
	l.cfg.origins[topicPath] = origin(topicPath)
	return nil
}

func topicList(v any) ([]map[string]any, bool) {
	switch v := v.(type) {
	case []map[string]any:
		return v, true
	case []any: // inline tables
		var list []map[string]any
		for _, item := range v {
			table, ok := item.(map[string]any)
			if !ok {
				return nil, false
			}
			list = append(list, table)
		}
		return list, true
	}
	return nil, false
}

// topics makes the entries.
func (l *loader) topics() error {
	for i, table := range l.topicTables {
		topic := l.cfg.Retention.defaultTopic()
		topic.Name = ""
		prefix := fmt.Sprintf("%s.%d.", topicPath, i)
		entry := loader{cfg: l.cfg, keys: make(map[string]key)}
		for _, k := range fields(prefix, reflect.ValueOf(&topic).Elem()) {
			entry.keys[k.path] = k
		}
		if err := entry.table(prefix, table, l.topicOrigin); err != nil {
			return err
		}
		l.cfg.Retention.Topic = append(l.cfg.Retention.Topic, topic)
	}
	return nil
}
