package zone

import "strings"

// nearest returns the name that a person most likely meant by typed, or "" when
// none is near: at most about a third of the letters differ, upper and lower case
// taken as alike.
func nearest(typed string, names []string) string {
	const longest = 64 // names are shorter; bounds the work for outside input
	if typed == "" || len(typed) > longest {
		return ""
	}
	low := strings.ToLower(typed)
	best, bestDistance := "", max(1, (len(typed)+1)/3)+1
	for _, n := range names {
		if len(n) > longest || max(len(n)-len(typed), len(typed)-len(n)) >= bestDistance {
			continue
		}
		if d := distance(low, strings.ToLower(n)); d < bestDistance {
			best, bestDistance = n, d
		}
	}
	return best
}

// distance counts the insertions, deletions, replacements and exchanges of
// neighbours that turn a into b.
func distance(a, b string) int {
	prev2, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
		}
		prev2, prev, row = prev, row, prev2
	}
	return prev[len(b)]
}
