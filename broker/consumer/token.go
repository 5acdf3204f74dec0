package consumer

import (
	"crypto/hmac"
)

// tokenMAC is how many bytes of the MAC a token carries, as handles do.
const tokenMAC = handleMAC

// TokenKind tells tokens of one purpose from those of another: the same data has
// another seal under each. Receipt handles begin with 1, so kinds begin at 128.
type TokenKind uint8

// TokenRecall seals what names a delayed message.
const TokenRecall TokenKind = 128

// SealToken returns the text of data and its seal, which context takes part in
// without being in the text: URL-safe base64 without padding.
func (s *Sealer) SealToken(kind TokenKind, data []byte, context string) string {
	b := make([]byte, 0, len(data)+tokenMAC)
	b = append(b, data...)
	b = append(b, s.tokenSum(kind, data, context)...)
	return handleEncoding.EncodeToString(b)
}

// OpenToken checks a token and returns its data: *HandleError with ReasonMalformed
// when SealToken did not make it with the same secret, kind and context.
func (s *Sealer) OpenToken(kind TokenKind, text, context string) ([]byte, error) {
	data, sum, err := splitToken(text)
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(s.tokenSum(kind, data, context), sum) {
		return nil, &HandleError{Reason: ReasonMalformed}
	}
	return data, nil
}

// PeekToken returns the data of a token whose seal is not checked: only its owner
// can. It says whom to ask, and nothing else.
func PeekToken(text string) ([]byte, error) {
	data, _, err := splitToken(text)
	return data, err
}

func splitToken(text string) (data, sum []byte, err error) {
	b, err := handleEncoding.DecodeString(text)
	if err != nil || len(b) <= tokenMAC || len(text) != handleEncoding.EncodedLen(len(b)) { // line breaks are passed over
		return nil, nil, &HandleError{Reason: ReasonMalformed}
	}
	return b[:len(b)-tokenMAC], b[len(b)-tokenMAC:], nil
}

// tokenSum is the truncated MAC over kind, context, a zero byte and data. A context
// has no zero byte.
func (s *Sealer) tokenSum(kind TokenKind, data []byte, context string) []byte {
	t := s.states.Get().(*sealing)
	defer s.states.Put(t)
	b := make([]byte, 0, 2+len(context)+len(data))
	b = append(b, byte(kind))
	b = append(b, context...)
	b = append(b, 0)
	b = append(b, data...)
	t.mac.Reset()
	t.mac.Write(b)
	return append([]byte(nil), t.mac.Sum(t.sum[:0])[:tokenMAC]...)
}
