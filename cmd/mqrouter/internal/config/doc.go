// Package config loads a node's configuration: flags win over MQROUTER_
// environment variables, these over the file, the file over the defaults. An
// unknown key in the file is an error, and Validate reports every fault at once.
//
// It has no goroutines and reads nothing but the file that it is given.
package config
