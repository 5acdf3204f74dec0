package fec

import "github.com/klauspost/reedsolomon"

// Bounds of a block, by the code: a Cauchy matrix over GF(2^8) has room for 256
// rows and columns together.
const (
	maxData   = 64 // packets of a block
	maxParity = 32 // parity packets of a block
)

// field multiplies slices over GF(2^8) with the processor's vector instructions.
var field reedsolomon.LowLevel

// coefficient is the entry of the generator's row parity and column data: that of
// a Cauchy matrix, 1/(x+y) with x = maxData+parity and y = data, which are never
// equal. Every square part of such a matrix has an inverse, so any data packets
// are found from as many parity packets (Bloemer et al., "An XOR-Based
// Erasure-Resilient Coding Scheme", ICSI TR-95-048). It is the matrix of
// reedsolomon.New(maxData, maxParity, reedsolomon.WithCauchyMatrix()), and does
// not depend on how many data and parity packets a block has: those that it lacks
// count as zero.
func coefficient(parity, data int) byte {
	return reedsolomon.Inv(byte(maxData+parity) ^ byte(data))
}

// product is a table of GF(2^8): product[a][b] = a*b. 64 KiB.
var product = func() (t [256][256]byte) {
	row := make([]byte, 256)
	for i := range row {
		row[i] = byte(i)
	}
	for a := range t {
		field.GalMulSlice(byte(a), row, t[a][:])
	}
	return t
}()

// addTo adds a data shard to the sum of a parity packet, which must be at least as
// long. What a shorter shard lacks counts as zero.
func addTo(sum []byte, parity, data int, shard []byte) {
	field.GalMulSliceXor(coefficient(parity, data), shard, sum)
}

// inverse inverts the square part of the matrix with the given rows (parity) and
// columns (data): out[d*n+p] is what data packet columns[d] takes of the parity
// packet rows[p]. The formula is that of Cauchy matrices, in n² steps.
func inverse(out []byte, rows, columns []int) {
	n := len(rows)
	var rowProduct, columnProduct [maxParity]byte // over all other entries
	for i := range n {
		x, y := byte(maxData+rows[i]), byte(columns[i])
		r, c := byte(1), byte(1)
		for k := range n {
			xk, yk := byte(maxData+rows[k]), byte(columns[k])
			r, c = product[r][x^yk], product[c][y^xk]
			if k != i {
				r, c = product[r][reedsolomon.Inv(x^xk)], product[c][reedsolomon.Inv(y^yk)]
			}
		}
		rowProduct[i], columnProduct[i] = r, c
	}
	for d := range n {
		for p := range n {
			v := reedsolomon.Inv(byte(columns[d]) ^ byte(maxData+rows[p]))
			out[d*n+p] = product[product[rowProduct[p]][columnProduct[d]]][v]
		}
	}
}
