package config

import "reflect"

// shippedPolicies are usable by name without being defined (docs/policies.md). A policy of the file replaces the one of
// its name.
const shippedPolicies = `
policies:
  - name: default
    chain: [{metric: health}, {metric: capacity}, {metric: rtt}, {metric: geo}, {metric: connection-load}, {metric: preference}, {metric: least-selected}, {metric: static}]
  - name: active-standby
    chain: [{metric: health}, {metric: capacity}, {metric: preference}, {metric: static}]
  - name: nearest
    chain: [{metric: health}, {metric: capacity}, {metric: geo}, {metric: least-selected}, {metric: static}]
  - name: fastest
    chain: [{metric: health}, {metric: capacity}, {metric: rtt}, {metric: geo}, {metric: static}]
  - name: spread
    chain: [{metric: health}, {metric: capacity}, {metric: static, method: weighted}]
`

// shipped returns the shipped policies with their parameters resolved like those of a file.
func shipped() []Policy {
	var c Config
	d := newDecoder("shipped policies", reflect.TypeFor[Config]())
	if !d.decode([]byte(shippedPolicies), nil, "GSLBD_", &c) || d.err() != nil {
		panic("config: shipped policies: " + d.err().Error())
	}
	return c.Policies
}
