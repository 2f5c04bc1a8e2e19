package sitereport_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gslbd/sitereport"
)

// recordings serves the files of a directory of testdata: what a path is asked for is the file of its name, with
// underscores in place of slashes. Another answer can be put in the place of a file.
type recordings struct {
	dir string
	url string

	mu    sync.Mutex
	other map[string]http.HandlerFunc // guarded by mu, by file
	asked []string                    // guarded by mu: what was asked for since the last look
}

func newRecordings(t *testing.T, name string) *recordings {
	r := &recordings{dir: filepath.Join("..", "testdata", name), other: make(map[string]http.HandlerFunc)}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func (r *recordings) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	file := strings.ReplaceAll(strings.Trim(q.URL.Path, "/"), "/", "_") + ".json"
	r.mu.Lock()
	r.asked = append(r.asked, q.URL.RequestURI())
	other := r.other[file]
	r.mu.Unlock()
	if other != nil {
		other(w, q)
		return
	}
	b, err := os.ReadFile(filepath.Join(r.dir, file))
	if err != nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Write(b)
}

// answer puts an answer in the place of a file; nil: the file again.
func (r *recordings) answer(file string, h http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.other[file] = h
}

// look returns what was asked for since the last look.
func (r *recordings) look() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := r.asked
	r.asked = nil
	return asked
}

// body answers with a text.
func body(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) }
}

// TestHTTPErrors has a source that answers otherwise than it should: an error that says what to do, no load, and nothing
// that is not to be shown.
func TestHTTPErrors(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"401": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, "it answers 401: let the agent's address in there"},
		"403": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, "it answers 403: let the agent's address in there"},
		"404": {http.NotFound, "there is nothing at this path"},
		"500": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, "it answers 500"},
		"204": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, "it answers 204"},
		"redirect": {func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, elsewhere.URL+q.URL.RequestURI(), http.StatusFound)
		}, "a redirect to"},
		"late": {func(w http.ResponseWriter, q *http.Request) {
			io.WriteString(w, "Active")
			w.(http.Flusher).Flush()
			<-q.Context().Done()
		}, "no whole answer within 300ms, or four"},
		"mute":  {func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }, "no whole answer within 300ms, or four"},
		"cut":   {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
		"page":  {body("<html>Welcome</html>"), "not answer with the page of stub_status"},
		"empty": {body(""), "not answer with the page of stub_status"},
		"endless": {func(w http.ResponseWriter, q *http.Request) {
			for q.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}, "longer than 20971520 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(tc.answer)
			defer server.Close()
			timeout := 300 * time.Millisecond
			if name == "endless" {
				timeout = 20 * time.Second
			}
			n, err := sitereport.NewNginxStatus(sitereport.HTTPOptions{URL: server.URL + "/status?key=s3cret", Timeout: timeout})
			if err != nil {
				t.Fatal(err)
			}
			r, err := n.Read(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "nginx "+server.URL+"/status: ") {
				t.Errorf("%v, want %s", err, tc.want)
			}
			if strings.Contains(fmt.Sprint(err), "s3cret") {
				t.Errorf("the error tells the query: %v", err)
			}
			if r.Load != (sitereport.Load{}) || r.Supplies == 0 {
				t.Errorf("%+v", r)
			}
		})
	}
	for _, url := range []string{"", "/run/x", "ftp://a/", "http://", "http://user:s3cret@127.0.0.1/", "http://a b/"} {
		if _, err := sitereport.NewNginxStatus(sitereport.HTTPOptions{URL: url}); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", url, err)
		}
	}
	n, err := sitereport.NewNginxStatus(sitereport.HTTPOptions{URL: "http://" + closed(t).String()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{t.Context(), ctx} {
		if _, err := n.Read(ctx); err == nil {
			t.Error("read where nothing is")
		}
	}
}
