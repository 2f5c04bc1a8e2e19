package config

import "fmt"

// A Secret is the content of a secret file. It never prints itself; string(s) is the value.
type Secret string

const hidden = "(secret)"

// String returns "(secret)".
func (s Secret) String() string { return hidden }

// Format writes "(secret)" for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// MarshalText returns "(secret)", also for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }
