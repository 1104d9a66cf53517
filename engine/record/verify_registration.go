package record

// registration checks the registration that a run belongs to: files has compared
// it with the digest that run_start names. One that the chain does not name was
// put there later, which would make a registered run of one that was not.
func (v *verifier) registration() error {
	data, err := v.file(RegistrationFile)
	if err != nil || data == nil || len(v.links) == 0 { // they are written before the first line is
		return err
	}
	if _, named := v.links[0].digests["registration"]; !named {
		v.damage(Problem{Added, RegistrationFile, 0, "run_start does not name it: the run belongs to no registration"})
		return nil
	}
	found, err := illegal("Registration", data)
	if err != nil {
		return err
	}
	if found != "" {
		v.judged = append(v.judged, Problem{Illegal, RegistrationFile, 0, found})
	}
	return nil
}
