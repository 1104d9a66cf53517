package criu

// Explain says why a CRIU failed that somebody else started, from the log that it
// left: what Run says of its own. A log that cannot be read says nothing.
func Explain(log string) *Failure {
	text, err := readTail(log)
	if err != nil {
		return &Failure{}
	}
	f := &Failure{}
	f.Kind, f.Lines = diagnose(errorLines(text))
	return f
}

// Hint is the remedy for the failure's kind; empty where there is none.
func (f *Failure) Hint() string { return kinds[f.Kind].hint }
