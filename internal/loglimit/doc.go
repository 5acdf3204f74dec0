// Package loglimit bounds how many lines of one kind reach the log when somebody
// else decides how often they come: strangers, damaged messages, a chatty
// library. It has no goroutines and reads no clock.
package loglimit
