package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/tierfs/tierfs/config"
)

// settingFlags are the flags of a command that reads settings.
type settingFlags struct {
	file     string
	settings []config.Setting // in the order in which they were given
}

// settingFlag is a flag for one setting.
type settingFlag struct {
	into *[]config.Setting
	key  config.Key
	flag string
}

func (f *settingFlag) String() string { return "" }
func (f *settingFlag) Type() string   { return "value" }

// Set implements pflag.Value.
func (f *settingFlag) Set(value string) error {
	*f.into = append(*f.into, config.Setting{Path: f.key.Path, Value: value, Where: "--" + f.flag})
	return nil
}

// storeFlag is --store.
type storeFlag struct{ into *[]config.Setting }

func (f *storeFlag) String() string { return "" }
func (f *storeFlag) Type() string   { return "URL" }

// Set implements pflag.Value.
func (f *storeFlag) Set(value string) error {
	list, err := config.StoreURL(value, "--store")
	*f.into = append(*f.into, list...)
	return err
}

// shortFlags are the settings with a flag of a shorter name.
var shortFlags = map[string]string{
	"store.take_ownership": "take-ownership",
	"mount.layout":         "layout",
}

// addSettingFlags gives a command --config, --store and a flag for each setting.
func addSettingFlags(cmd *cobra.Command) *settingFlags {
	f := &settingFlags{}
	flags := cmd.Flags()
	flags.StringVar(&f.file, "config", "", "file of settings (default "+config.DefaultFile+" if it is there)")
	flags.Var(&storeFlag{&f.settings}, "store", "fs:/dir or s3://bucket/prefix")
	for _, k := range config.Keys() {
		if k.Secret { // the command line of a process is there for all to see
			continue
		}
		names := []string{k.Flag}
		if short := shortFlags[k.Path]; short != "" {
			names = append(names, short)
		}
		for i, name := range names {
			flag := flags.VarPF(&settingFlag{&f.settings, k, name}, name, "", "sets "+k.Path)
			flag.Hidden = i == 0
			if k.Bool {
				flag.NoOptDefVal = "true"
			}
		}
	}
	return f
}

// load returns the effective settings, validated. extra come from arguments.
func (f *settingFlags) load(p *program, extra ...config.Setting) (*config.Config, error) {
	file := f.file
	for _, entry := range p.environ {
		if value, ok := strings.CutPrefix(entry, config.FileVariable+"="); ok && file == "" {
			file = value
		}
	}
	c, err := config.Load(config.Input{File: file, Env: p.environ, Flags: append(f.settings, extra...)})
	if err != nil {
		return nil, usage(err)
	}
	if err := c.Validate(); err != nil {
		return nil, usage(err)
	}
	return c, nil
}
