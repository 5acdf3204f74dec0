// Package render draws a topology: as SVG that needs no other program, as DOT
// for Graphviz, and as a mermaid flow chart for wikis and code review.
//
// It owns the pictures and nothing else. It never does I/O, reads no clock, and
// starts no goroutines. It promises the same bytes for the same topology and
// options, so that a picture can be kept beside the topology under version
// control and compared.
//
// A picture is made in two steps. A scene says what is to be seen, without
// places: cities with their zones, broker groups, routers and caches, standbys,
// links, where a topic goes, what differs from an older topology (scene.go,
// diff.go). DOT and mermaid print a scene and leave its layout to their
// programs. SVG lays it out itself (plan.go, layout.go):
//
//	city    city    city      row of cities, routers at their lower edge
//	  |   x   |   x   |       band: links and standbys between cities only
//	city    city    city      row of cities upside down, routers at their upper edge
//
// In a city, zones are cards in a grid. Standbys run through gutters between
// the columns and through gaps between the rows, each in a lane of its own, so
// that no line crosses a text.
package render
