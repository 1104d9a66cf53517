package gate

import (
	"fmt"
	"reflect"
)

// variant is a value with exactly one thing changed, and the path of that thing.
type variant[T any] struct {
	path  string
	value T
}

// variants changes v one field at a time, by reflection, so that a field that
// is added to a compared type is covered without a line here: each leaf gets
// another value, each list and map loses each of its elements and gains one.
func variants[T any](v T) []variant[T] {
	var out []variant[T]
	walk(reflect.ValueOf(&v).Elem(), "", func(path string, change func(root reflect.Value)) {
		c := clone(reflect.ValueOf(&v).Elem())
		change(c)
		out = append(out, variant[T]{path: path, value: c.Interface().(T)})
	}, func(root reflect.Value) reflect.Value { return root })
	return out
}

// walk calls visit for each change that v allows. at finds v in a copy of the root.
func walk(v reflect.Value, path string, visit func(string, func(reflect.Value)), at func(reflect.Value) reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() {
				panic("unexported field " + f.Name)
			}
			walk(v.Field(i), path+"."+f.Name, visit, func(root reflect.Value) reflect.Value { return at(root).Field(i) })
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), fmt.Sprintf("%s[%d]", path, i), visit, func(root reflect.Value) reflect.Value { return at(root).Index(i) })
			visit(fmt.Sprintf("%s[%d] is gone", path, i), func(root reflect.Value) {
				s := at(root)
				s.Set(reflect.AppendSlice(s.Slice(0, i), s.Slice(i+1, s.Len())))
			})
		}
		visit(path+"[] is new", func(root reflect.Value) {
			s := at(root)
			e := reflect.New(s.Type().Elem()).Elem()
			fill(e)
			s.Set(reflect.Append(s, e))
		})
	case reflect.Map:
		for _, k := range v.MapKeys() {
			visit(fmt.Sprintf("%s[%v]", path, k), func(root reflect.Value) {
				e := reflect.New(v.Type().Elem()).Elem()
				e.Set(at(root).MapIndex(k))
				fill(e)
				at(root).SetMapIndex(k, e)
			})
			visit(fmt.Sprintf("%s[%v] is gone", path, k), func(root reflect.Value) { at(root).SetMapIndex(k, reflect.Value{}) })
		}
		visit(path+"[] is new", func(root reflect.Value) {
			m := at(root)
			if m.IsNil() {
				m.Set(reflect.MakeMap(m.Type()))
			}
			k, e := reflect.New(m.Type().Key()).Elem(), reflect.New(m.Type().Elem()).Elem()
			fill(k)
			fill(e)
			m.SetMapIndex(k, e)
		})
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64:
		visit(path, func(root reflect.Value) { fill(at(root)) })
	default:
		panic(fmt.Sprintf("no change is known for %s, a %s", path, v.Type()))
	}
}

// fill gives each leaf of v another value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.String:
		v.SetString(v.String() + "9")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 7)
	case reflect.Float64:
		v.SetFloat(v.Float() + 7)
	}
}

// clone is a deep copy, addressable.
func clone(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			c.Field(i).Set(clone(v.Field(i)))
		}
	case reflect.Slice:
		if !v.IsNil() {
			c.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			for i := range v.Len() {
				c.Index(i).Set(clone(v.Index(i)))
			}
		}
	case reflect.Map:
		if !v.IsNil() {
			c.Set(reflect.MakeMap(v.Type()))
			for _, k := range v.MapKeys() {
				c.SetMapIndex(k, clone(v.MapIndex(k)))
			}
		}
	default:
		c.Set(v)
	}
	return c
}
