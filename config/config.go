package config

// Config is the file of gslbd, with all defaults resolved. The environment's prefix is GSLBD_.
type Config struct {
	DNS         DNS         `mapstructure:"dns"`
	Reports     Reports     `mapstructure:"reports"`
	Admin       Admin       `mapstructure:"admin"`
	State       State       `mapstructure:"state"`
	Geo         Geo         `mapstructure:"geo"`
	RTT         RTT         `mapstructure:"rtt"`
	ZoneAliases []ZoneAlias `mapstructure:"zone_aliases" size:"1000"`
	Sites       []Site      `mapstructure:"sites" size:"1000"`
	Zones       []Zone      `mapstructure:"zones" size:"10000"`
	// Policies holds the shipped policies and those of the file, which replace shipped ones of the same name.
	Policies   []Policy   `mapstructure:"policies" size:"1000"`
	Services   []Service  `mapstructure:"services" size:"100000"`
	Evacuation Evacuation `mapstructure:"evacuation"`
	// Tests are what `gslbd check` holds the policies against.
	Tests  []Test `mapstructure:"tests" size:"10000"`
	Log    Log    `mapstructure:"log"`
	Dnstap Dnstap `mapstructure:"dnstap"`
}

// Site returns the site of this name, or nil.
func (c *Config) Site(name string) *Site {
	for i := range c.Sites {
		if c.Sites[i].Name == name {
			return &c.Sites[i]
		}
	}
	return nil
}

// Policy returns the policy of this name, shipped or of the file, or nil.
func (c *Config) Policy(name string) *Policy {
	for i := range c.Policies {
		if c.Policies[i].Name == name {
			return &c.Policies[i]
		}
	}
	return nil
}
