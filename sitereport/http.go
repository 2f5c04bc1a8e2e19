package sitereport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// maxHTTPBody bounds what is read of one answer, after decompression: about 25,000 servers at 800 bytes of JSON.
const maxHTTPBody = 20 << 20

// HTTPOptions say how a reader asks over HTTP.
type HTTPOptions struct {
	URL     string        // http or https, without user and password
	Timeout time.Duration // for one reading, all that is asked for together; default 2s

	// Transport sends the requests, and presents what the source wants to see; default: NewTransport(nil), which presents
	// nothing.
	Transport http.RoundTripper
}

// A source is what a reader asks over HTTP. It follows no redirect.
type source struct {
	name    string // in errors: the URL without its query, which may hold what others should not see
	base    *url.URL
	timeout time.Duration
	client  *http.Client
}

// newSource returns a source. It fails when the URL is none.
func newSource(what string, o HTTPOptions) (*source, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Host == "" || base.User != nil || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("%s: not a URL of http or https without user and password", what)
	}
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Second
	}
	if o.Transport == nil {
		o.Transport = NewTransport(nil)
	}
	shown := *base
	shown.RawQuery, shown.Fragment = "", ""
	return &source{
		name: what + " " + shown.String(), base: base, timeout: o.Timeout,
		client: &http.Client{
			Transport:     o.Transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// get asks for what lies at path below the source's URL, "" for the URL itself, with query in place of its own if that is
// not "".
func (s *source) get(ctx context.Context, path, query string) ([]byte, error) {
	u := *s.base
	if path != "" {
		u = *u.JoinPath(path)
	}
	if query != "" {
		u.RawQuery = query
	}
	body, err := s.fetch(ctx, &u)
	switch {
	case err == nil:
		return body, nil
	case errors.Is(err, context.DeadlineExceeded):
		err = late("no whole answer", s.timeout)
	}
	if path != "" {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return nil, err
}

func (s *source) fetch(ctx context.Context, u *url.URL) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", "gslb-agent")
	response, err := s.client.Do(request)
	if err != nil {
		var whole *url.Error
		if errors.As(err, &whole) { // which would tell the query
			err = whole.Err
		}
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxHTTPBody+1))
	switch code := response.StatusCode; {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return nil, fmt.Errorf("it answers %d: let the agent's address in there, or give the agent a token_file, or user and password_file", code)
	case code >= 300 && code < 400:
		to, _, _ := strings.Cut(response.Header.Get("Location"), "?") // which may repeat our query
		return nil, fmt.Errorf("it answers %d, a redirect to %q, which is not followed: write the URL that it leads to", code, printable(to, 128))
	case code == http.StatusNotFound:
		return nil, errors.New("it answers 404: there is nothing at this path")
	case code != http.StatusOK:
		return nil, fmt.Errorf("it answers %d", code)
	case err != nil:
		return nil, err
	case len(body) > maxHTTPBody:
		return nil, fmt.Errorf("the answer is longer than %d bytes", maxHTTPBody)
	}
	return body, nil
}

// late says that something was not done in time. The agent's reports leave less than timeout where they are frequent. The
// text is the same each time, so that it is logged once.
func late(what string, timeout time.Duration) error {
	return fmt.Errorf("%s within %s, or four fifths of the time between reports", what, timeout)
}

// getJSON asks likewise, and reads the answer into v.
func (s *source) getJSON(ctx context.Context, path, query string, v any) error {
	body, err := s.get(ctx, path, query)
	if err != nil {
		return err
	}
	err = json.Unmarshal(body, v)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		err = fmt.Errorf("a %s at byte %d, where there should be something else", wrong.Value, wrong.Offset)
	}
	if err != nil {
		return fmt.Errorf("%s: not the JSON that belongs there: %w", path, err)
	}
	return nil
}

// failed returns err with the name of the source.
func (s *source) failed(err error) error { return fmt.Errorf("%s: %w", s.name, err) }
