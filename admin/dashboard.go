package admin

import (
	"embed"
	"net/http"
)

// pages are the dashboard: a page, its style, its scripts and the outlines of its map.
//
//go:embed dashboard/index.html dashboard/style.css dashboard/script.js dashboard/world.js
var pages embed.FS

// pagePolicy is the Content-Security-Policy of the dashboard: only what comes from here, and no markup made from text.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// dashboard serves the page and its files. They tell nothing of this gslbd, so everybody may have them: a browser cannot
// show a token before it has a page that asks for it. All that the page shows comes from the guarded part.
func dashboard(mux *http.ServeMux) {
	for path, file := range map[string]struct{ name, media string }{
		"/{$}":                 {"index.html", "text/html; charset=utf-8"},
		"/dashboard/style.css": {"style.css", "text/css; charset=utf-8"},
		"/dashboard/script.js": {"script.js", "text/javascript; charset=utf-8"},
		"/dashboard/world.js":  {"world.js", "text/javascript; charset=utf-8"},
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			data, err := pages.ReadFile("dashboard/" + file.name)
			if err != nil {
				refuse(w, http.StatusInternalServerError, "%v", err)
				return
			}
			w.Header().Set("Content-Security-Policy", pagePolicy)
			w.Header().Set("Content-Type", file.media)
			_, _ = w.Write(data) // a caller that went away cannot be told
		})
	}
}
