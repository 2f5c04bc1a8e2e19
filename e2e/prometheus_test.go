package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gslbd/e2e/lab"
	"gslbd/testdata/certs"
)

const (
	rulesFile   = "../packaging/prometheus/gslbd.rules.yaml"
	grafanaFile = "../packaging/grafana/gslbd.json"
)

// Every alert fires where it should and only there, and says where one reads what to do.
func TestAlertRules(t *testing.T) {
	runbooks := regexp.MustCompile(`runbook: docs/operations\.md#(\w+)`).FindAllStringSubmatch(read(t, rulesFile), -1)
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(read(t, rulesFile), -1)
	tests := read(t, "../packaging/prometheus/gslbd.rules.test.yaml")
	page := read(t, "../docs/operations.md")
	if len(alerts) == 0 || len(alerts) != len(runbooks) {
		t.Fatalf("%d alerts, %d runbooks", len(alerts), len(runbooks))
	}
	for i, a := range alerts {
		if !strings.Contains(page, "\n### "+a[1]+"\n") || runbooks[i][1] != strings.ToLower(a[1]) {
			t.Errorf("%s: docs/operations.md has no such heading, or the runbook is another: %s", a[1], runbooks[i][1])
		}
		if !strings.Contains(tests, "name: "+a[1]+"\n") {
			t.Errorf("%s has no test", a[1])
		}
	}
	promtool := lab.Program(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "gslbd.rules.yaml"}, {"test", "rules", "gslbd.rules.test.yaml"}, {"check", "config", "prometheus.example.yaml"},
	} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = "../packaging/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// The rules and the Grafana dashboard ask only for series that there are.
func TestSeriesExist(t *testing.T) {
	series := regexp.MustCompile(`gslb(?:d|_agent)_[a-z_]+`)
	var known []string
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			known = append(known, series.FindAllString(read(t, path), -1)...)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{rulesFile, grafanaFile} {
		for _, name := range series.FindAllString(read(t, file), -1) {
			if !slices.Contains(known, strings.TrimSuffix(name, "_bucket")) {
				t.Errorf("%s: there is no %s", file, name)
			}
		}
	}
}

// A grafanaDashboard is what the tests look at of one.
type grafanaDashboard struct {
	UID           string
	SchemaVersion int
	Panels        []struct {
		ID         int
		Title      string
		Type       string
		Datasource grafanaSource
		GridPos    struct{ X, Y, W, H int }
		Targets    []struct {
			RefID      string
			Datasource grafanaSource
			Expr       string
		}
	}
	Templating struct {
		List []struct {
			Name, Type string
			Datasource grafanaSource
			Query      json.RawMessage
			Definition string
		}
	}
	Annotations struct {
		List []struct {
			Datasource grafanaSource
			Expr       string
		}
	}
}

type grafanaSource struct{ Type, UID string }

func readGrafana(t *testing.T) *grafanaDashboard {
	t.Helper()
	d := new(grafanaDashboard)
	if err := json.Unmarshal([]byte(read(t, grafanaFile)), d); err != nil {
		t.Fatal(err)
	}
	return d
}

// panels returns the expressions of the Grafana dashboard, by panel.
func panels(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, p := range readGrafana(t).Panels {
		for _, target := range p.Targets {
			all[p.Title] = append(all[p.Title], strings.NewReplacer("$instance", ".*", "$service", ".*", "$site", ".*", "$__rate_interval", "30s").Replace(target.Expr))
		}
	}
	return all
}

// The Grafana dashboard is one that Grafana imports: every id once, no panel over another, all from the source that the
// variable names, and no variable that is not declared.
func TestGrafanaDashboard(t *testing.T) {
	d := readGrafana(t)
	if d.UID == "" || d.SchemaVersion == 0 {
		t.Errorf("uid %q, schemaVersion %d", d.UID, d.SchemaVersion)
	}
	source := grafanaSource{"prometheus", "${datasource}"}
	declared := []string{"__rate_interval"} // Grafana's own
	for i, v := range d.Templating.List {
		declared = append(declared, v.Name)
		switch {
		case i == 0 && (v.Name != "datasource" || v.Type != "datasource" || string(v.Query) != `"prometheus"`):
			t.Errorf("the first variable is %s %s %s, and not the source of the others", v.Type, v.Name, v.Query)
		case i > 0 && (v.Type != "query" || v.Datasource != source || !strings.HasPrefix(v.Definition, "label_values(")):
			t.Errorf("variable %+v", v)
		}
	}
	ids, titles, cells := map[int]bool{}, map[string]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 || titles[p.Title] || p.Title == "" {
			t.Errorf("panel %d %q: the id or title is not its own", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		if !slices.Contains([]string{"row", "stat", "timeseries", "state-timeline"}, p.Type) {
			t.Errorf("%s: type %q", p.Title, p.Type)
		}
		if p.Type == "row" != (len(p.Targets) == 0) || p.Type != "row" && p.Datasource != source {
			t.Errorf("%s: %d expressions from %+v", p.Title, len(p.Targets), p.Datasource)
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if refs[target.RefID] || target.RefID == "" || target.Datasource != source {
				t.Errorf("%s: target %+v", p.Title, target)
			}
			refs[target.RefID] = true
			for _, v := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if !slices.Contains(declared, v[1]) {
					t.Errorf("%s: no variable %s", p.Title, v[1])
				}
			}
		}
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("%s: at %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, taken := cells[[2]int{x, y}]; taken {
					t.Fatalf("%s lies over %s", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
	}
	for _, a := range d.Annotations.List {
		if a.Datasource != source || a.Expr == "" {
			t.Errorf("annotation %+v", a)
		}
	}
}

// A real Prometheus scrapes a running gslbd and a running agent beside HAProxy, has data for every panel and variable of the Grafana
// dashboard, and raises alerts.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	prometheus := lab.Program(t, "prometheus")
	s := startGSLBD(t, dashboardConfig)
	telemetry := freeAddr(t)
	virginia := startHAProxySite(t, "virginia", "127.0.12.1", "telemetry: {listen: \""+telemetry+"\"}\n", s)
	dir, listen := t.TempDir(), freeAddr(t)
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("global: {scrape_interval: 500ms, evaluation_interval: 500ms}\nrule_files: [%q]\nscrape_configs:\n  - job_name: gslbd\n    static_configs: [{targets: [%q]}]\n  - job_name: gslb-agent\n    static_configs: [{targets: [%q]}]\n", rules, s.admin, telemetry)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, prometheus, "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+listen, "--log.level=warn")

	// query returns how many series Prometheus answers with.
	query := func(expr string) (int, error) {
		resp, err := http.Get("http://" + listen + "/api/v1/query?" + url.Values{"query": {expr}}.Encode())
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		var answer struct {
			Status, Error string
			Data          struct{ Result []json.RawMessage }
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			return 0, err
		}
		if answer.Status != "success" {
			return 0, fmt.Errorf("%s: %s", expr, answer.Error)
		}
		return len(answer.Data.Result), nil
	}
	has := func(expr string) func() bool {
		return func() bool { n, err := query(expr); return err == nil && n > 0 }
	}
	s.keepReporting(t, "seoul", func() string {
		return `{"site": "seoul", "load": {"sessions": 7, "bits_per_second_in": 1000, "bits_per_second_out": 2000}}`
	}, func(string) {})
	lab.Eventually(t, 30*time.Second, "Prometheus has scraped gslbd", has(`gslbd_site_sessions{site="seoul"} == 7`))
	lab.Eventually(t, 30*time.Second, "it has scraped the agent", has(`gslb_agent_servers{virtual_server="web", state="up"} == 2`))
	lab.Eventually(t, 30*time.Second, "it has rates", has(`rate(gslbd_reports_total[30s]) and on () rate(gslb_agent_reports_total{result="accepted"}[30s]) > 0`))
	s.ask(t, question{name: "www.gslb.example.com"})
	for title, exprs := range panels(t) {
		for _, expr := range exprs {
			n, err := query(expr)
			if err != nil {
				t.Errorf("%s: %v", title, err)
			}
			if n == 0 && title != "Reports refused" { // of which there are no series before there are such reports
				lab.Eventually(t, 30*time.Second, "the panel "+title+" shows something: "+expr, has(expr))
			}
		}
	}
	for _, v := range readGrafana(t).Templating.List {
		if m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Definition); m != nil {
			if n, err := query(fmt.Sprintf("%s{%s!=\"\"}", m[1], m[2])); n == 0 || err != nil {
				t.Errorf("variable %s has no values: %v", v.Name, err)
			}
		}
	}
	s.write(t, "services: 1\n")
	if out, code := s.tryCtl(t, "reload"); code != 1 {
		t.Fatalf("a wrong configuration is taken: %s", out)
	}
	lab.Eventually(t, 30*time.Second, "an alert is raised", has(`ALERTS{alertname="GslbdReloadFailed", alertstate="firing"}`))
	if n, err := query(`ALERTS{alertname=~"GslbdAway|GslbAgent.*"}`); n != 0 || err != nil {
		t.Errorf("GslbdAway or an alert of the agent is raised (%d) or cannot be asked: %v", n, err)
	}
	virginia.haproxy.signal(syscall.SIGKILL)
	lab.Eventually(t, 30*time.Second, "an alert of the agent begins", has(`ALERTS{alertname="GslbAgentCannotRead", reader="haproxy `+virginia.socket+`"}`))
	s.signal(syscall.SIGTERM)
	lab.Eventually(t, 60*time.Second, "another begins", has(`ALERTS{alertname="GslbAgentNotHeard", server="http://`+s.reports+`"}`))
}

// docs/telemetry.md has every series that gslbd exports with its type, labels and meaning, and no other.
func TestTelemetryPage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := certs.Authority("gslbd")
	if err == nil {
		err = self.Write(dir, "self")
	}
	if err != nil {
		t.Fatal(err)
	}
	pair := fmt.Sprintf("certificate: %[1]s/self.pem, key: %[1]s/self.key", dir)
	s := newServiceManager(t).prepare(t, seedNetwork+fleetService+fmt.Sprintf("dnstap: {file: %s/tap}\n", dir))
	s.rewrite(t, "drain_time: 0s", fmt.Sprintf("drain_time: 0s, tls: {listen: [%q], %s}", freeAddr(t), pair))
	s.rewrite(t, "interval: 1s", "interval: 1s, tls: {"+pair+"}")
	s.run(t)
	s.answer(t, www)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	resp, err := client.Post("https://"+s.reports+"/v1/sites/seoul/report", "application/json",
		strings.NewReader(`{"site": "seoul", "load": {"sessions": 1000, "bits_per_second_in": 1, "bits_per_second_out": 2}}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	lab.Eventually(t, 20*time.Second, "the report is published", func() bool { return s.scrape(t, `gslbd_site_sessions{site="seoul"}`) == "1000" })
	resp, err = http.Get("http://" + s.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	text, page := string(body), read(t, "../docs/telemetry.md")

	rows := map[string][]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(gslbd_\\w+)` \\| (\\w+) \\|(.*?)\\| (.*?) \\| .* \\|$").FindAllStringSubmatch(page, -1) {
		rows[row[1]] = row[2:]
	}
	label := regexp.MustCompile("`(\\w+)`(?: \\(([^)]*)\\))?")
	for _, family := range regexp.MustCompile(`(?m)^# HELP (gslbd_\w+) (.*)\n# TYPE \w+ (\w+)\n`).FindAllStringSubmatch(text, -1) {
		name, help, kind := family[1], family[2], family[3]
		row, ok := rows[name]
		if !ok {
			t.Errorf("docs/telemetry.md has no %s", name)
			continue
		}
		delete(rows, name)
		if row[0] != kind || row[2] != help {
			t.Errorf("%s is a %s: %q; docs/telemetry.md has a %s: %q", name, kind, help, row[0], row[2])
		}
		said := map[string]string{}
		for _, l := range label.FindAllStringSubmatch(row[1], -1) {
			said[l[1]] = l[2]
		}
		for _, labels := range regexp.MustCompile(`(?m)^`+name+`(?:_sum)?(?:\{(.*)\})? `).FindAllStringSubmatch(text, -1) {
			pairs := regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(labels[1], -1)
			if len(pairs) != len(said) {
				t.Errorf("%s{%s}: docs/telemetry.md has the labels %v", name, labels[1], said)
			}
			for _, p := range pairs {
				values, ok := said[p[1]]
				if !ok || values != "" && !slices.Contains(strings.Split(values, ", "), p[2]) {
					t.Errorf("%s{%s}: docs/telemetry.md has %s (%s)", name, labels[1], p[1], values)
				}
			}
		}
	}
	for name := range rows {
		t.Errorf("docs/telemetry.md has %s, which gslbd does not export", name)
	}
}
