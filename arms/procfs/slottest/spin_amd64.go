package slottest

func spin(loops, seed uint64) (bad uint64)
