// Package geo places an address on the globe.
package geo
