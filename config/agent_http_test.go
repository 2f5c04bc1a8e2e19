package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gslbd/config"
)

// TestAgentHTTP reads how readers ask over HTTP: their files are relative to the file, and secrets in plain HTTP are
// warned of.
func TestAgentHTTP(t *testing.T) {
	dir := t.TempDir()
	load := func(readers string) (*config.Agent, []string, error) {
		t.Helper()
		file := filepath.Join(dir, "agent.yaml")
		for name, text := range map[string]string{
			"agent.yaml": "site: seoul\nagent: lb1\nservers: [\"http://127.0.0.1:8054\"]\n" + readers,
			"secret":     "s3cret\n",
			"ca.pem":     "",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a, warnings, err := config.LoadAgent(file)
		for i := range warnings {
			warnings[i] = strings.TrimPrefix(warnings[i], file+":")
		}
		return a, warnings, err
	}
	a, warnings, err := load(`
nginx:
  - {url: "http://192.0.2.7/status?a=b", tls: {ca: ca.pem}, user: monitor, password_file: secret}
  - {url: "http://127.0.0.1/status", timeout: 300ms, token_file: secret}
  - {url: "https://LB.example.com/status", tls: {ca: ca.pem}, token_file: secret}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []config.NginxStatus{
		{AgentHTTP: config.AgentHTTP{URL: "http://192.0.2.7/status?a=b", Timeout: 2 * time.Second, TLS: config.HTTPTLS{CA: filepath.Join(dir, "ca.pem")}, User: "monitor", PasswordFile: filepath.Join(dir, "secret")}},
		{AgentHTTP: config.AgentHTTP{URL: "http://127.0.0.1/status", Timeout: 300 * time.Millisecond, TokenFile: filepath.Join(dir, "secret")}},
		{AgentHTTP: config.AgentHTTP{URL: "https://LB.example.com/status", Timeout: 2 * time.Second, TLS: config.HTTPTLS{CA: filepath.Join(dir, "ca.pem")}, TokenFile: filepath.Join(dir, "secret")}},
	}
	if d := cmp.Diff(want, a.Nginx); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{
		"6: nginx[0].tls.ca: has no effect: url is not https",
		"6: nginx[0].url: 192.0.2.7 is sent a secret in plain HTTP: whoever is on the path can read it; use https",
	}, warnings); d != "" {
		t.Error(d)
	}
	for readers, want := range map[string]string{
		`nginx: [{url: "http://127.0.0.1/", token_file: secret, user: u, password_file: secret}]`: "stands beside password_file",
		`nginx: [{url: "http://127.0.0.1/", password_file: secret}]`:                              "nginx[0].user: is missing",
		`nginx: [{url: "http://127.0.0.1/", token_file: ca.pem}]`:                                 "ca.pem is empty",
		`nginx: [{url: "http://127.0.0.1/", tls: {ca: none.pem}}]`:                                "nginx[0].tls.ca: stat",
		`nginx: [{url: "ftp://127.0.0.1/?key=s3cret"}]`:                                           `nginx[0].url: "ftp://127.0.0.1/" is not a URL to read`,
		`nginx: [{url: "http://127.0.0.1/?key=s3cret"}, {url: "http://127.0.0.1/?key=s3cret"}]`:   "nginx[1].url: is the same as nginx[0].url",
	} {
		if _, _, err := load(readers); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %s", readers, err, want)
		}
	}
}
