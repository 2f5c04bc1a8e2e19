package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gslbd/e2e/lab"
)

const dashboardConfig = `
zones: [{name: gslb.example.com, file: testdata/zones/gslb.example.com.zone}]
sites:
  - {name: seoul, zone: apne2-az1, region: ap-northeast-2, location: {continent: AS, country: KR, latitude: 37.57, longitude: 126.98}, capacity: {sessions: 900000, bandwidth: 900Mbps}}
  - {name: virginia, zone: use1-az1, region: us-east-1, location: {continent: NA, country: US, latitude: 38.95, longitude: -77.45}, capacity: {sessions: 900000, bandwidth: 900Mbps}}
services:
  - name: www.gslb.example.com
    members:
      - {name: seoul, site: seoul, addresses: [192.0.2.1]}
      - {name: virginia, site: virginia, addresses: [192.0.2.2]}
`

// TestDashboard looks at the dashboard with a browser: testdata/dashboard.js has what it must show. DASHBOARD_SCREENSHOTS
// names a folder for pictures of it.
func TestDashboard(t *testing.T) {
	chromium := lab.Program(t, "chromium")
	node := lab.Program(t, "node")
	modules := os.Getenv("NODE_PATH")
	if out, err := exec.Command("npm", "root", "-g").Output(); err == nil && modules == "" {
		modules = strings.TrimSpace(string(out))
	}
	probe := exec.Command(node, "-e", `require("playwright-core")`)
	probe.Env = append(os.Environ(), "NODE_PATH="+modules)
	lab.Need(t, probe.Run() == nil, "the npm package playwright-core (npm install -g playwright-core)")

	// A second service, at two sites that are on no map, which fails over and goes back by hand.
	s := startGSLBD(t, strings.Replace(dashboardConfig, "\nservices:\n", `
  - {name: tokyo, zone: apne1-az1}
  - {name: osaka, zone: apne3-az1}
services:
  - name: db.gslb.example.com
    failover: {failback: manual}
    members:
      - {name: tokyo, site: tokyo, addresses: [192.0.2.3]}
      - {name: osaka, site: osaka, addresses: [192.0.2.4], role: backup}
`, 1))
	const token = "a-token-of-32-characters-at-least"
	secured := &gslbd{dns: freeAddr(t), reports: freeAddr(t), admin: freeAddr(t), dir: t.TempDir()}
	secured.config = filepath.Join(secured.dir, "gslbd.yaml")
	secured.write(t, dashboardConfig)
	for name, text := range map[string]string{
		"admin.token": token + "\n",
		"gslbd.yaml":  strings.Replace(read(t, secured.config), "admin: {", "admin: {token_file: admin.token, ", 1),
	} {
		if err := os.WriteFile(filepath.Join(secured.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	secured.run(t)
	for _, client := range []string{"203.0.113.0/24", "198.51.100.0/24", "192.0.2.0/24"} {
		s.ask(t, question{name: "www.gslb.example.com", ecs: client})
	}

	script, err := filepath.Abs("testdata/dashboard.js")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(node, script)
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules, "ADMIN="+s.admin, "REPORTS="+s.reports, "SECURED="+secured.admin, "TOKEN="+token, fmt.Sprint("PID=", s.cmd.Process.Pid),
		"CHROMIUM="+chromium, "SCREENSHOTS="+os.Getenv("DASHBOARD_SCREENSHOTS"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	t.Logf("%s", out.String())
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
