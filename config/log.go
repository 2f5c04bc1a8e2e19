package config

// Log is the section log.
type Log struct {
	// Level is the least severe level logged: debug, info, warn or error. Default info.
	Level string `mapstructure:"level" default:"info" enum:"debug|info|warn|error"`
	// Format is json or text. Default json.
	Format string `mapstructure:"format" default:"json" enum:"json|text"`
	// Queries is the share of queries logged. 0 to 1, default 0.
	Queries float64 `mapstructure:"queries" default:"0" min:"0" max:"1" unit:"share"`
}
