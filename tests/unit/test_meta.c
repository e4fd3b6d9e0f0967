/* Meta maps: what is built is read, types are checked, hostile bytes are refused before a parser sees them. */
#include <math.h>

#include "base/json.h"
#include "frames.h"
#include "frame/internal.h"

static int parse(const void *p, size_t n)
{
	struct meta_doc *d;
	struct ds_err err;
	int rc = meta_parse(&d, p, n, &err);

	if (!rc)
		meta_doc_free(d);
	return rc;
}

#define BYTES(s) s, sizeof(s) - 1

static void test_hostile(void)
{
	uint8_t deep[64];
	static const struct { const char *what, *p; size_t n; } bad[] = {
		{ "nothing", BYTES("") },
		{ "no map", BYTES("\x90") },
		{ "a map of 2^32 pairs", BYTES("\xdf\xff\xff\xff\xff") },
		{ "an array of 2^32 elements", BYTES("\x81\xa1x\xdd\xff\xff\xff\xff") },
		{ "a map of 2^16 pairs", BYTES("\xde\xff\xff\xa0") },
		{ "a string beyond the end", BYTES("\x81\xa1x\xdb\xff\xff\xff\xff") },
		{ "a bin beyond the end", BYTES("\x81\xa1x\xc6\x7f\xff\xff\xff") },
		{ "an ext beyond the end", BYTES("\x81\xa1x\xc9\xff\xff\xff\xff\x01") },
		{ "a fixext cut short", BYTES("\x81\xa1x\xd8\x01zzz") },
		{ "a float cut short", BYTES("\x81\xa1x\xcb\x00") },
		{ "a length cut short", BYTES("\x81\xa1x\xdb\x00") },
		{ "byte c1", BYTES("\x81\xa1x\xc1") },
		{ "a number as key", BYTES("\x81\x01\x01") },
		{ "a nested map with a number as key", BYTES("\x81\xa1x\x81\x01\x01") },
		{ "a string that is no UTF-8", BYTES("\x81\xa1x\xa1\xff") },
		{ "a key that is no UTF-8", BYTES("\x81\xa1\x80\x01") },
		{ "a surrogate", BYTES("\x81\xa1x\xa3\xed\xa0\x80") },
		{ "an overlong character", BYTES("\x81\xa1x\xa2\xc0\xaf") },
		{ "a character cut short", BYTES("\x81\xa1x\xa2\xe2\x82") },
		{ "a missing value", BYTES("\x81\xa1x") },
		{ "bytes after the map", BYTES("\x80\x80") },
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		tap_ok(parse(bad[i].p, bad[i].n) == DS_DATA, "%s is refused", bad[i].what);
	memset(deep, 0x91, sizeof deep);
	memcpy(deep, "\x81\xa1x", 3);
	deep[10] = 1;
	tap_ok(parse(deep, 11) == 0, "eight levels are taken");
	deep[10] = 0x91;
	deep[11] = 1;
	tap_ok(parse(deep, 12) == DS_DATA, "nine are refused");
	tap_ok(parse(deep, sizeof deep) == DS_DATA, "sixty are refused");
	tap_ok(parse(BYTES("\x81\xa1x\xa4\xf0\x9f\x98\x80")) == 0, "a character of four bytes");
	tap_ok(parse(BYTES("\x82\xa1x\xc4\x01\xff\xa1y\xd6\x01zzzz")) == 0, "bin and ext may hold any bytes");
}

/* No input of up to three bytes, and no damaged sample, breaks it; msgpack-c agrees with the walk. */
static void test_walk(void)
{
	uint8_t p[4] = { 0x81, 0xa0 };
	unsigned good = 0;
	size_t n;
	uint8_t *s;

	for (unsigned v = 0; v < 0x10000; v++) {
		p[2] = (uint8_t)(v >> 8);
		p[3] = (uint8_t)v;
		good += parse(p, 4) == 0;
	}
	tap_ok(good > 100, "short maps: %u of 65536 are maps", good);
	s = sample(&n, 64);
	good = 0;
	for (size_t i = 44; i < 44 + get_be32(s + 30); i++) {
		uint8_t was = s[i];

		for (unsigned v = 0; v < 256; v++) {
			s[i] = (uint8_t)v;
			good += parse(s + 44, get_be32(s + 30)) == 0;
		}
		s[i] = was;
	}
	tap_ok(good > 0, "damaged maps: %u still are maps", good);
	free(s);
}

static struct frame *through(struct frame_reader **r, struct meta_builder *b, int *rc, struct ds_err *err)
{
	int fd = memfd_create("meta", MFD_CLOEXEC);
	enum frame_event ev = FRAME_AGAIN;
	struct frame_writer *w;
	struct frame *f = NULL;

	*r = NULL;
	*rc = frame_writer_new(&w, fd, "t", err);
	if (!*rc)
		*rc = frame_write(w, FRAME_TEXT, 0, 1, b, NULL, 0, false, err);
	frame_writer_free(w);
	lseek(fd, 0, SEEK_SET);
	if (!*rc)
		*rc = frame_reader_new(r, fd, "t", 0, err);
	while (!*rc && ev != FRAME_BODY)
		*rc = frame_reader_next(*r, &ev, &f, err);
	close(fd);
	return f;
}

static void put_sample(struct meta_builder *b)
{
	meta_put_uint(b, "big", UINT64_MAX);
	meta_put_real(b, "pi", 3.25);
	meta_put_real(b, "nan", (double)NAN);
	meta_put_bool(b, "yes", true);
	meta_put_nil(b, "nil");
	meta_put_cstr(b, "text", "h\xc3\xa9");
	meta_put_map(b, "map");
	meta_put_array(b, "list");
	for (int k = 0; k < 20; k++)
		meta_put_uint(b, NULL, (uint64_t)k);
	meta_put_end(b);
	meta_put_end(b);
}

static void test_scalars(struct meta m)
{
	struct meta a;
	char text[8];
	const char *s;
	uint64_t u = 0;
	double x = 0;
	bool yes = false;
	size_t n = 0;

	tap_ok(meta_uint(m, "big", &u) == META_OK && u == UINT64_MAX, "uint");
	tap_ok(meta_real(m, "pi", &x) == META_OK && x == 3.25, "real");
	tap_ok(meta_real(m, "big", &x) == META_OK && x == 0x1p64, "real from an integer");
	tap_ok(meta_bool(m, "yes", &yes) == META_OK && yes, "bool");
	tap_ok(meta_str(m, "text", &s, &n) == META_OK && n == 3, "string");
	tap_ok(meta_cstr(m, "text", text, 4) == META_OK && !strcmp(text, "h\xc3\xa9"), "copied string");
	tap_ok(meta_cstr(m, "text", text, 3) == META_TYPE, "a string too long for its place");
	tap_ok(meta_uint(m, "pi", &u) == META_TYPE && meta_bool(m, "pi", &yes) == META_TYPE &&
		meta_str(m, "pi", &s, &n) == META_TYPE && meta_real(m, "nan", &x) == META_TYPE &&
		meta_map(m, "pi", &a) == META_TYPE && meta_array(m, "map", &a, &n) == META_TYPE,
		"other types are told");
	tap_ok(meta_uint(m, "nil", &u) == META_ABSENT && meta_uint(m, "none", &u) == META_ABSENT &&
		meta_at_uint(m, 0, &u) == META_ABSENT, "absent");
}

static void test_nested(struct meta m)
{
	struct meta a = { 0 };
	uint64_t u = 0;
	size_t n = 0;

	tap_ok(meta_map(m, "map", &m) == META_OK && meta_array(m, "list", &a, &n) == META_OK && n == 20, "nested");
	tap_ok(meta_at_uint(a, 19, &u) == META_OK && u == 19,
		"elements");
	tap_ok(meta_at_uint(a, 20, &u) == META_ABSENT, "elements that are not there");
}

static void test_json(struct meta m)
{
	struct buf out = { 0 };
	struct jw w;

	jw_init(&w, &out);
	meta_json(&w, m);
	tap_is_str(out.p,
		"{\"big\":18446744073709551615,\"pi\":3.25,\"nan\":null,\"yes\":true,"
		"\"nil\":null,\"text\":\"h\xc3\xa9\","
		"\"map\":{\"list\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19]}}", "as JSON");
	buf_free(&out);
}

static void test_values(void)
{
	struct meta_builder *b = meta_new();
	struct frame_reader *r;
	struct ds_err err;
	struct frame *f;
	int rc;

	put_sample(b);
	f = through(&r, b, &rc, &err);
	tap_ok(!rc, "built and read");
	if (rc)
		tap_bail("%s", err.text);
	test_scalars(f->meta);
	test_nested(f->meta);
	test_json(f->meta);
	frame_reader_free(r);
	meta_free(b);
}

static void test_misuse(void)
{
	struct meta_builder *b = meta_new();
	struct ds_err err;
	const uint8_t *p;
	size_t n, pairs;

	meta_put_uint(b, NULL, 1);
	tap_ok(meta_built(b, &p, &n, &pairs, &err) == DS_BUG, "a value without a key");
	meta_reset(b);
	meta_put_map(b, "open");
	tap_ok(meta_built(b, &p, &n, &pairs, &err) == DS_BUG, "a map left open");
	meta_reset(b);
	for (int i = 0; i < 9; i++)
		meta_put_array(b, i ? NULL : "a");
	tap_ok(meta_built(b, &p, &n, &pairs, &err) == DS_BUG, "too deep");
	meta_reset(b);
	meta_put_cstr(b, "x", "\xff");
	tap_ok(meta_built(b, &p, &n, &pairs, &err) == DS_BUG, "a string that is no UTF-8");
	meta_reset(b);
	tap_ok(meta_built(b, &p, &n, &pairs, &err) == 0 && pairs == 0, "reset");
	meta_free(b);
}

/* One row of "tensors" after the other, each wrong in one way. */
static void test_rows(void)
{
	static const struct {
		const char *what;
		const char *name, *dtype;
		uint64_t dim, offset, nbytes;
		int axes;
	} rows[] = {
		{ "right", "a", "F32", 16, 0, 64, 1 },
		{ "unknown dtype", "a", "F31", 16, 0, 64, 1 },
		{ "size", "a", "F32", 16, 0, 60, 1 },
		{ "beyond the payload", "a", "F32", 16, 64, 64, 1 },
		{ "far beyond the payload", "a", "F32", 16, UINT64_MAX - 3, 64, 1 },
		{ "overflow", "a", "F32", UINT64_MAX / 2, 0, UINT64_MAX, 1 },
		{ "misaligned", "a", "F32", 4, 2, 16, 1 },
		{ "no name", "", "F32", 16, 0, 64, 1 },
		{ "axes and shape differ", "a", "F32", 16, 0, 64, 2 },
		{ "nine axes", "a", "F32", 16, 0, 64, 9 },
	};
	struct frame_tensor t;
	struct ds_err err;

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct meta_builder *b = meta_new();
		struct frame_reader *r;
		struct frame *f;
		int rc;

		meta_put_array(b, "tensors");
		meta_put_array(b, NULL);
		meta_put_cstr(b, NULL, rows[i].name);
		meta_put_cstr(b, NULL, rows[i].dtype);
		meta_put_array(b, NULL);
		for (int k = 0; k < rows[i].axes; k++)
			meta_put_cstr(b, NULL, "x");
		meta_put_end(b);
		meta_put_array(b, NULL);
		for (int k = 0; k < (rows[i].axes == 9 ? 9 : 1); k++)
			meta_put_uint(b, NULL, k ? 1 : rows[i].dim);
		meta_put_end(b);
		meta_put_uint(b, NULL, rows[i].offset);
		meta_put_uint(b, NULL, rows[i].nbytes);
		meta_put_nil(b, NULL);
		meta_put_end(b);
		meta_put_end(b);
		f = through(&r, b, &rc, &err);
		f->data_len = 64;
		tap_ok(!rc && frame_tensor_count(f) == 1 && (frame_tensor_at(f, 0, &t, &err) == 0) == (i == 0),
			"row: %s", rows[i].what);
		frame_reader_free(r);
		meta_free(b);
	}
}

int main(void)
{
	test_hostile();
	test_walk();
	test_values();
	test_misuse();
	test_rows();
	return tap_done();
}
