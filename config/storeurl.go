package config

import "github.com/tierfs/tierfs/objstore/backend"

// StoreURL turns the value of --store into settings; see backend.ParseURL for
// its forms. Without a prefix in it store.prefix stays what it is. where is the
// flag's name.
func StoreURL(raw, where string) ([]Setting, error) {
	b, err := backend.ParseURL(raw)
	if err != nil {
		return nil, &Error{
			Where: where, Problem: err.Error(),
			Remedy: "write fs:/dir or s3://bucket/prefix",
		}
	}
	list := []Setting{{Path: "store.backend", Value: b.Backend, Where: where}}
	for _, s := range []Setting{
		{Path: "store.fs.path", Value: b.FS.Path},
		{Path: "store.s3.bucket", Value: b.S3.Bucket},
		{Path: "store.prefix", Value: b.Prefix},
	} {
		if s.Value != "" {
			list = append(list, Setting{Path: s.Path, Value: s.Value, Where: where})
		}
	}
	return list, nil
}

// BackendConfig returns the settings in the form that backend.Open takes.
func (s *Store) BackendConfig() backend.Config {
	return backend.Config{
		Backend:               s.Backend,
		Prefix:                s.Prefix,
		ConnectionIdleTimeout: s.ConnectionIdleTimeout.Std(),
		CAFile:                s.CAFile,
		Proxy:                 s.Proxy,
		FS:                    backend.FS{Path: s.FS.Path},
		S3: backend.S3{
			Bucket: s.S3.Bucket, Region: s.S3.Region, Endpoint: s.S3.Endpoint, URLStyle: s.S3.URLStyle,
			AccessKey: s.S3.AccessKey, SecretKey: s.S3.SecretKey, CredentialsSource: s.S3.CredentialsSource,
			SSE: s.S3.SSE, SSEKMSKey: s.S3.SSEKMSKey,
		},
	}
}
