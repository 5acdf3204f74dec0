package zone

import (
	"slices"
	"strings"
)

// EncodeResidency returns the form in which records and frames carry a
// residency: the names of the allowed cities, sorted, joined by commas. It is
// empty when every city is allowed, so equal strings mean equal residencies.
func (t *TopicInfo) EncodeResidency() string {
	if t.resident == nil {
		return ""
	}
	names := make([]string, len(t.Residency))
	for i, c := range t.Residency {
		names[i] = string(c.Name)
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// ResidencyAllows reports whether a record with the encoded residency may
// enter the city. It does not allocate.
func ResidencyAllows(encoded string, city City) bool {
	for encoded != "" {
		name, rest, more := strings.Cut(encoded, ",")
		if name == string(city) {
			return true
		}
		if !more {
			return false
		}
		encoded = rest
		if encoded == "" {
			return false
		}
	}
	return true
}
