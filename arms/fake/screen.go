package fake

import (
	"bytes"
	goimage "image"
	"image/color"
	"image/png"
	"net/http"
)

// screenshot is the guest's screen: always the same small picture, which shows nothing of the world.
func (s *server) screenshot(w http.ResponseWriter, _ *http.Request) {
	if s.tenancy.fault("no-picture") {
		fail(w, http.StatusInternalServerError, "no screen")
		return
	}
	w.Header().Set("Content-Type", "image/png")
	w.Write(screen)
}

// screen is a picture of 64 by 64.
var screen = func() []byte {
	m := goimage.NewRGBA(goimage.Rect(0, 0, 64, 64))
	for x := range 64 {
		for y := range 64 {
			m.Set(x, y, color.RGBA{uint8(4 * x), uint8(3 * y), 120, 255})
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		panic(err) // a picture in memory can be written
	}
	return b.Bytes()
}()
