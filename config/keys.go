package config

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// key is one setting of a Config: its path, and the field that holds it.
type key struct {
	path   string // "store.s3.bucket"
	secret string // "whole", "user" (of a URL), or ""
	field  reflect.Value
}

func (k key) env() string  { return "TIERFS_" + strings.ToUpper(strings.ReplaceAll(k.path, ".", "_")) }
func (k key) flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(k.path) }

// shown is value as an error or a listing may show it.
func (k key) shown(value string) string {
	switch {
	case value == "" || value == `""`:
	case k.secret == "whole", k.secret == "user" && strings.Contains(value, "@"):
		return "***"
	}
	return value
}

// keys lists the settings of c in the order of its fields.
func (c *Config) keys() []key {
	return fields("", reflect.ValueOf(c).Elem())
}

// fields lists the settings of one struct, tables inside it included.
func fields(prefix string, table reflect.Value) []key {
	var list []key
	for i := range table.NumField() {
		f := table.Type().Field(i)
		name := f.Tag.Get("toml")
		if name == "" {
			continue
		}
		if f.Type.Kind() == reflect.Struct {
			list = append(list, fields(prefix+name+".", table.Field(i))...)
			continue
		}
		list = append(list, key{path: prefix + name, secret: f.Tag.Get("secret"), field: table.Field(i)})
	}
	return list
}

// setText sets the field from what an environment variable or a flag says.
func (k key) setText(s string) error {
	switch p := k.field.Addr().Interface().(type) {
	case *string:
		*p = s
		return nil
	case *bool:
		return parse(p, s, parseBool)
	case *int:
		return parse(p, s, parseInt)
	case *Duration:
		return parse(p, s, ParseDuration)
	case *Bytes:
		return parse(p, s, ParseBytes)
	case *Rate:
		return parse(p, s, ParseRate)
	case *Count:
		return parse(p, s, ParseCount)
	case *[]string:
		*p = nil
		for item := range strings.SplitSeq(s, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*p = append(*p, item)
			}
		}
		return nil
	}
	return fmt.Errorf("can only be set in the file")
}

// setValue sets the field from what the file says: a string is read as text, a
// number and a truth value only by fields that hold such.
func (k key) setValue(v any) error {
	switch p := k.field.Addr().Interface().(type) {
	case *string, *Duration:
		if s, ok := v.(string); ok {
			return k.setText(s)
		}
		return fmt.Errorf("is not a string in quotes")
	case *bool:
		b, ok := v.(bool)
		if !ok {
			return fmt.Errorf("is neither true nor false")
		}
		*p = b
		return nil
	case *int:
		n, ok := v.(int64)
		if !ok {
			return fmt.Errorf("is not a whole number")
		}
		return parse(p, strconv.FormatInt(n, 10), parseInt)
	case *Bytes, *Rate, *Count:
		switch v := v.(type) {
		case string:
			return k.setText(v)
		case int64:
			return k.setText(strconv.FormatInt(v, 10))
		}
		return fmt.Errorf("is neither a string in quotes nor a whole number")
	case *[]string:
		return setStrings(p, v)
	}
	return fmt.Errorf("cannot be set")
}

func setStrings(p *[]string, v any) error {
	items, ok := v.([]any)
	if !ok {
		return fmt.Errorf("is not a list")
	}
	*p = nil
	for _, item := range items {
		s, ok := item.(string)
		if !ok {
			return fmt.Errorf("holds something that is not a string in quotes")
		}
		*p = append(*p, s)
	}
	return nil
}

func parse[T any](p *T, s string, read func(string) (T, error)) error {
	v, err := read(s)
	if err != nil {
		return err
	}
	*p = v
	return nil
}

func parseBool(s string) (bool, error) {
	switch strings.TrimSpace(s) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("is neither true nor false")
}

func parseInt(s string) (int, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil || n > math.MaxInt32 || n < math.MinInt32 {
		return 0, fmt.Errorf("is not a whole number")
	}
	return int(n), nil
}

// text writes the field's value as the file would have it, without quotes.
func (k key) text() string {
	if items, ok := k.field.Interface().([]string); ok {
		return strings.Join(items, ",")
	}
	return fmt.Sprint(k.field.Interface())
}

// example is how a value of the field's type is written, for remedies.
func (k key) example() string {
	switch k.field.Interface().(type) {
	case bool:
		return "write true or false"
	case int:
		return "write a whole number, such as 4"
	case Count:
		return `write a whole number or "auto"`
	case Duration:
		return `write it like "300 ms", "5 s", "10 m" or "1 d"`
	case Bytes:
		return `write it like "64 KiB", "8 MiB" or "4 GiB"`
	case Rate:
		return `write it like "100 MiB/s" or "unlimited"`
	case []string:
		return `write it like ["updatedb", "locate"]`
	}
	return "write it in quotes"
}
