/* The hash of payloads is libxxhash's, whatever the processor, whole and in pieces. */
#include "base/xxh3.h"
#include "tap.h"

enum { MOST = 300000 };

int main(void)
{
	static uint8_t p[MOST + 8];
	size_t wrong = 0, pieces = 0, tried = 0;
	uint32_t x = 1;

	for (size_t i = 0; i < sizeof(p); i++)
		p[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
	for (size_t n = 0; n <= MOST; n += n < 3000 ? 1 : 9973)
		for (size_t at = 0; at < 8; at += 3, tried++)
			wrong += xxh3(p + at, n) != XXH3_64bits(p + at, n);
	tap_ok(wrong == 0, "%zu lengths and places: %zu differ", tried, wrong);
	for (size_t round = 0; round < 2000; round++) {
		size_t n = (x = x * 1664525 + 1013904223) % (round % 2 ? 2000 : MOST), at = 0;
		struct xxh3_state s;

		xxh3_begin(&s);
		while (at < n) {
			size_t some = (x = x * 1664525 + 1013904223) % (round % 3 ? 700 : 70000);

			some = some < n - at ? some : n - at;
			xxh3_add(&s, p + at, some);
			at += some;
		}
		pieces += xxh3_end(&s) != XXH3_64bits(p, n);
	}
	tap_ok(pieces == 0, "2000 texts in pieces: %zu differ", pieces);
	return tap_done();
}
