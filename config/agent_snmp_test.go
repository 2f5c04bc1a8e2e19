package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gslbd/config"
)

// snmpFile writes an agent's file, with this below snmp, and the secrets that it may name.
func snmpFile(t *testing.T, snmp string) (path string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "agent.yaml")
	for name, text := range map[string]string{
		path:                       "site: seoul\nagent: lb1\nservers: [\"http://127.0.0.1:8054\"]\nsnmp:\n" + snmp,
		filepath.Join(dir, "good"): "correct horse\n", filepath.Join(dir, "short"): "s3cret\n", filepath.Join(dir, "lines"): "s3cret-1\ns3cret-2\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestAgentSNMP(t *testing.T) {
	path := snmpFile(t, `
  - version: v2c
    address: lb.example.com
    community_file: short
    virtual_servers: [{name: a, states: [{column: 1.3.6.1.4.1.2, up: [-1, 1]}]}]
  - version: v3
    address: "[2001:db8::9]:1161"
    user: gslb agent
    authentication_file: good
    privacy_file: good
    sessions: [.1.3.6.1.4.1.3.0]
    virtual_servers: [{name: b, states: [{column: .1.3.6.1.4.1.2, up: [1]}]}]
`)
	a, warnings, err := config.LoadAgent(path)
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	v2, v3 := a.SNMP[0], a.SNMP[1]
	if string(v2.Community) != "s3cret" || v2.VirtualServers[0].States[0].Column != ".1.3.6.1.4.1.2" || v2.VirtualServers[0].States[0].Up[0] != -1 || v2.Authentication != "" {
		t.Errorf("%+v", v2)
	}
	if string(v3.AuthenticationPassword) != "correct horse" || string(v3.PrivacyPassword) != "correct horse" || v3.Authentication != "sha256" || v3.Privacy != "aes" {
		t.Errorf("%+v", v3)
	}
	if text := fmt.Sprintf("%+v", a); strings.Contains(text, "s3cret") || strings.Contains(text, "horse") {
		t.Error("a secret is printed")
	}
}

func TestAgentSNMPFaults(t *testing.T) {
	path := snmpFile(t, `  - version: v2c
    address: h
    community_file: lines
    octets_in: [sysUpTime.0]
    connections: [.1.3.6.1.4.1.3.0]
    new_sessions: [.1.3.6.1.4.1.3.0]
    virtual_servers:
      - {name: a, sessions: .1.3.6.4294967296, states: [
        {column: .1.3.6.1, up: [1], drain: [1]}]}
      - {name: a, states: [{column: .1.3.6.1}]}
  - {version: v2c, address: h, user: u, community_file: none, octets_in: [.1.3.6.1.1]}
  - version: v3
    address: i
    user: u
    authentication_file: short
    virtual_servers: [{name: c, states: []}]
`)
	a, _, err := config.LoadAgent(path)
	if a != nil {
		t.Error("a faulty file gave a configuration")
	}
	dir := filepath.Dir(path)
	want := strings.TrimSpace(`
7: snmp[0].community_file: DIR/lines holds more than one line, or what cannot be printed
8: snmp[0].octets_in[0]: "sysUpTime.0" is not an OID in digits, such as .1.3.6.1.2.1.1.3.0: ` + "`snmptranslate -On`" + ` turns names into them
9: snmp[0].connections: new_sessions gives the same figure: remove one of them
12: snmp[0].virtual_servers[0].sessions: ".1.3.6.4294967296" is not an OID: 4294967296 is more than 4294967295
13: snmp[0].virtual_servers[0].states[0].drain[0]: 1 has another meaning already
14: snmp[0].virtual_servers[1].states[0].up: is missing
14: snmp[0].virtual_servers[1].name: "a" is already snmp[0].virtual_servers[0].name
15: snmp[1].user: version v2c takes no user; it belongs to v3
15: snmp[1].virtual_servers: is missing
15: snmp[1].address: "h" is already snmp[0].address
15: snmp[1].community_file: open DIR/none: no such file or directory
15: snmp[1]: has octets_in or octets_out alone: traffic is reported of both directions or not at all
16: snmp[2].privacy_file: is missing
19: snmp[2].authentication_file: DIR/short holds fewer than 8 characters, which is the least that SNMP version 3 takes
20: snmp[2].virtual_servers[0].states: is empty, and needs at least one entry`)
	got := strings.ReplaceAll(strings.ReplaceAll(fmt.Sprint(err), path+":", ""), dir, "DIR")
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
