// Package e2e tries mqrouter the way its users do: the built binary, real
// processes that are killed, the official RocketMQ clients, a real Redis for
// each city, and the commands of the README as they are written there. It has
// no code of its own, only tests.
package e2e
