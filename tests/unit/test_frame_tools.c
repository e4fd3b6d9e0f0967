/* What ds-frame's commands are made of: maps, ranges, names of points, rows that replace rows, differences of rows. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/random.h"
#include "frame/diff.h"
#include "frame/select.h"
#include "model/pack.h"
#include "tests/unit/tap.h"

static void test_map(void)
{
	struct map m = { 0 };
	bool fresh, ok = true;

	for (uint64_t i = 0; i < 10000; i++) {
		size_t *v = map_at(&m, i * 1000003u << 20, &fresh);

		ok &= v && fresh && !*v;
		*v = (size_t)i + 1;
	}
	for (uint64_t i = 0; i < 10000; i++) {
		const size_t *v = map_find(&m, i * 1000003u << 20);

		ok &= v && *v == i + 1;
	}
	ok &= !map_find(&m, 1) && *map_at(&m, 0, &fresh) == 1 && !fresh && m.n == 10000;
	map_free(&m);
	tap_ok(ok && !map_find(&m, 0), "a map keeps 10000 keys apart");
}

static void test_ranges(void)
{
	static const char *const bad[] = { "", "x", "1-2", "3..2", "..", "1,", ",1", "1..2..3", "-1", "0x1",
		"99999999999999999999" };
	struct ds_err err;
	struct ranges r;
	bool ok = true;

	ok &= !ranges_parse(&r, "layer", "3,5..7,12..", &err);
	for (uint64_t i = 0; i < 20; i++)
		ok &= ranges_have(&r, i) == (i == 3 || (i >= 5 && i <= 7) || i >= 12);
	ok &= ranges_meet(&r, 0, 4) && !ranges_meet(&r, 0, 3) && ranges_meet(&r, 7, 1) && !ranges_meet(&r, 8, 4);
	ok &= ranges_have(&r, UINT64_MAX) && !ranges_meet(&r, 4, 0);
	ok &= !ranges_parse(&r, "layer", "..3", &err) && ranges_have(&r, 0) && !ranges_have(&r, 4);
	ok &= !ranges_parse(&r, "layer", NULL, &err) && ranges_have(&r, 77);
	tap_ok(ok, "ranges");
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		tap_ok(ranges_parse(&r, "layer", bad[i], &err) == DS_USAGE && strstr(err.text, "--layer"),
			"'%s' is no range", bad[i]);
}

static bool name_is(const char *text, const char *name, bool layered, uint64_t layer)
{
	char back[POINT_NAME_MAX + 32];
	struct point p;

	if (!point_parse(text, strlen(text), &p))
		return name == NULL;
	point_format(&p, back);
	return name && strcmp(p.name, name) == 0 && p.layered == layered && p.layer == layer && strcmp(back, text) == 0;
}

static void test_points(void)
{
	static const char *const order[] = { "embed", "layer.0.q", "layer.0.out", "layer.0.strange",
		"layer.2.attn_core", "layer.2.router.ids", "layer.10.q", "final", "logits", "request.tokens" };
	struct point p[ARRAY_LEN(order)];
	bool ok = true;

	tap_ok(name_is("layer.3.attn_out", "attn_out", true, 3) && name_is("embed", "embed", false, 0) &&
		name_is("layer.0.router.ids", "router.ids", true, 0) && name_is("layer.x.q", "layer.x.q", false, 0) &&
		name_is("layer.03.q", "layer.03.q", false, 0) && name_is("layer.3.", "layer.3.", false, 0) &&
		name_is("layer.99999999999.q", NULL, false, 0) && name_is("", NULL, false, 0), "names of points");
	for (size_t i = 0; i < ARRAY_LEN(order); i++)
		point_parse(order[i], strlen(order[i]), &p[i]);
	for (size_t i = 0; i < ARRAY_LEN(order); i++)
		for (size_t j = 0; j < ARRAY_LEN(order); j++) {
			int c = point_compare(&p[i], &p[j]);

			ok &= i < j ? c < 0 : i > j ? c > 0 : c == 0;
		}
	tap_ok(ok, "points in the order of a step");
	tap_ok(point_matches("layer.*.router", &p[5]) && point_matches("x,layer.2.*", &p[4]) &&
		point_matches("*", &p[0]) && !point_matches("layer.1.*", &p[4]) &&
		!point_matches("layer.*.router", &p[4]) && point_matches("layer.[0-9].q", &p[1]) &&
		!point_matches("layer.[0-9].q", &p[6]) && !point_matches("", &p[0]), "patterns of points");
}

/* ---- rows that replace rows ---- */

enum { PLACES = 60 };

/* Random row lists, settled, against a plain table of who wrote each position last. */
static bool settle_once(uint64_t seed)
{
	struct capture c;
	uint64_t last[2][PLACES], bytes[2][PLACES], seen = 0;
	size_t rank[2] = { 1, 0 }, n = 1 + random_bits(seed, 0) % 12, want = 0;
	struct ds_err err;
	bool ok = true;

	memset(&c, 0, sizeof c);
	memset(last, 0, sizeof last);
	c.fd = c.spool = -1;
	c.rows = mem_calloc(n, sizeof *c.rows);
	for (size_t i = 0; i < n; i++) {
		struct cap_rows *r = &c.rows[c.row_count++];

		*r = (struct cap_rows){ .key = random_bits(seed, 4 * i + 1) % 2,
			.first = random_bits(seed, 4 * i + 2) % 40,
			.count = 1 + random_bits(seed, 4 * i + 3) % 20, .cols = 3, .type = DT_BF16, .at = i * 1000,
			.order = i + 1 };
		for (uint64_t p = r->first; p < r->first + r->count; p++) {
			last[r->key][p] = i + 1;
			bytes[r->key][p] = r->at + (p - r->first) * 6;
		}
	}
	for (size_t k = 0; k < 2; k++)
		for (size_t p = 0; p < PLACES; p++)
			want += last[k][p] != 0;
	if (capture_settle(&c, rank, &err))
		tap_bail("%s", err.text);
	for (size_t i = 0; i < c.row_count; i++) {
		const struct cap_rows *r = &c.rows[i];

		if (i && c.rows[i - 1].key == r->key)
			ok &= c.rows[i - 1].first + c.rows[i - 1].count <= r->first;
		else if (i)
			ok &= rank[c.rows[i - 1].key] < rank[r->key];
		for (uint64_t p = r->first; p < r->first + r->count; p++, seen++)
			ok &= last[r->key][p] == r->order && bytes[r->key][p] == r->at + (p - r->first) * 6;
	}
	capture_close(&c);
	return ok && seen == want;
}

static void test_settle(void)
{
	size_t good = 0;

	for (uint64_t seed = 0; seed < 3000; seed++)
		good += settle_once(seed);
	tap_ok(good == 3000, "rows that come again replace earlier ones: %zu of 3000", good);
}

/* ---- differences of rows ---- */

static bool near(double a, double b)
{
	return fabs(a - b) <= 1e-12 * fabs(b);
}

static void test_rows(void)
{
	float a[4] = { 3, 0, -4, 0 }, b[4] = { 3, 0, -4, 0.5f }, zero[4] = { 0 }, minus[4] = { -0.0f };
	float nan[4] = { 3, NAN, -4, 0 }, inf[4] = { INFINITY, 0, -4, 0 };
	uint16_t half[4] = { 0x4040, 0, 0xc080, 0 };
	uint32_t ids[4] = { 1, 2, 3, 4 }, other[4] = { 1, 2, 4, 3 };
	int32_t same[4] = { 1, 2, 3, 4 };
	struct row_diff d;

	row_compare(DT_F32, a, DT_F32, a, 4, &d);
	tap_ok(!d.differs && d.abs == 0 && d.rel == 0 && d.cos == 1, "a row and itself");
	row_compare(DT_F32, a, DT_F32, b, 4, &d);
	tap_ok(d.differs && d.abs == 0.5 && near(d.rel, 0.1) && near(d.cos, 25 / (5 * sqrt(25.25))) && d.col == 3 &&
		d.a == 0 && d.b == 0.5, "absolute, relative, cosine, where");
	row_compare(DT_F32, zero, DT_F32, b, 4, &d);
	tap_ok(d.differs && isinf(d.rel) && d.cos == 0, "against zeros");
	row_compare(DT_F32, zero, DT_F32, minus, 4, &d);
	tap_ok(d.differs && d.abs == 0 && d.rel == 0 && d.cos == 1, "minus zero is not zero");
	row_compare(DT_F32, a, DT_F32, nan, 4, &d);
	tap_ok(d.differs && isinf(d.abs) && isinf(d.rel) && isnan(d.cos) && d.col == 1, "a NaN on one side");
	nan[0] = 2;
	row_compare(DT_F32, nan, DT_F32, (float[]){ 2, -NAN, -4, 0 }, 4, &d);
	tap_ok(!d.differs, "any two NaN are the same");
	row_compare(DT_F32, nan, DT_F32, (float[]){ 1, NAN, -4, 0 }, 4, &d);
	tap_ok(d.differs && d.abs == 1 && near(d.rel, 1 / sqrt(20.0)), "beside a NaN on both sides");
	row_compare(DT_F32, inf, DT_F32, a, 4, &d);
	tap_ok(d.differs && isinf(d.rel) && d.col == 0, "an infinity on one side");
	row_compare(DT_F32, a, DT_BF16, half, 4, &d);
	tap_ok(!d.differs, "the same numbers in two types");
	row_compare(DT_U32, ids, DT_U32, other, 4, &d);
	tap_ok(d.differs && isinf(d.rel) && d.col == 2 && d.a == 3 && d.b == 4, "ids have no distance");
	row_compare(DT_U32, ids, DT_I32, same, 4, &d);
	tap_ok(!d.differs, "ids of two types");
}

/* ---- chosen experts ---- */

enum { CHOSEN = 4 };

static bool ids_differ(const uint32_t a[CHOSEN], const int64_t b[CHOSEN], struct row_diff *d)
{
	struct typed_row ids[2] = { { DT_U32, a }, { DT_I64, b } };
	struct chosen c = { 0 };
	struct ds_err err;

	if (chosen_ids(&c, ids, CHOSEN, d, &err))
		tap_bail("%s", err.text);
	chosen_free(&c);
	return d->differs;
}

static bool weights_differ(const uint32_t ia[CHOSEN], const float a[CHOSEN], const uint32_t ib[CHOSEN],
	const float b[CHOSEN], struct row_diff *d)
{
	struct typed_row ids[2] = { { DT_U32, ia }, { DT_U32, ib } }, weights[2] = { { DT_F32, a }, { DT_F32, b } };
	struct chosen c = { 0 };
	struct ds_err err;

	if (chosen_weights(&c, weights, ids, CHOSEN, d, &err))
		tap_bail("%s", err.text);
	chosen_free(&c);
	return d->differs;
}

#define IDS(...) ((const uint32_t[CHOSEN]){ __VA_ARGS__ })
#define LONGS(...) ((const int64_t[CHOSEN]){ __VA_ARGS__ })
#define WEIGHTS(...) ((const float[CHOSEN]){ __VA_ARGS__ })

static void test_chosen(void)
{
	const float nan = NAN;
	struct row_diff d;

	tap_ok(!ids_differ(IDS(7, 1, 30, 4), LONGS(30, 4, 1, 7), &d) && d.abs == 0 && d.cos == 1,
		"the same experts in another order");
	tap_ok(ids_differ(IDS(7, 1, 30, 4), LONGS(30, 4, 2, 7), &d) && d.col == 1 && d.a == 1 && d.b == 2 &&
		isinf(d.rel), "one expert differs: which, and where");
	tap_ok(ids_differ(IDS(7, 7, 1, 1), LONGS(7, 1, 1, 1), &d) && d.a == 7 && d.b == 1,
		"an expert that comes twice");
	tap_ok(ids_differ(IDS(UINT32_MAX, 1, 2, 3), LONGS(-1, 1, 2, 3), &d) && d.a == (double)UINT32_MAX && d.b == -1,
		"2^32 - 1 is not -1");
	tap_ok(!weights_differ(IDS(7, 1, 30, 4), WEIGHTS(.4f, .3f, .2f, .1f), IDS(30, 7, 4, 1),
		WEIGHTS(.2f, .4f, .1f, .3f), &d), "weights by their experts");
	tap_ok(weights_differ(IDS(7, 1, 30, 4), WEIGHTS(.4f, .3f, .2f, .1f), IDS(30, 7, 4, 1),
		WEIGHTS(.4f, .3f, .2f, .1f), &d) && d.col == 1 && near(d.abs, (double).3f - (double).1f),
		"the same weights in the same order, of experts in another");
	tap_ok(weights_differ(IDS(7, 1, 30, 4), WEIGHTS(.4f, .3f, .2f, .1f), IDS(7, 1, 30, 4),
		WEIGHTS(.2f, .3f, .4f, .1f), &d) && d.col == 0,
		"two weights swapped, of experts in the same order");
	tap_ok(weights_differ(IDS(7, 1, 30, 4), WEIGHTS(.4f, .3f, .2f, .1f), IDS(4, 1, 30, 8),
		WEIGHTS(.1f, .3f, .2f, .5f), &d) && d.abs == .5 && d.a == 0 && d.b == .5 && d.col == 3,
		"an expert that one side did not choose weighs 0 there");
	tap_ok(weights_differ(IDS(7, 1, 30, 4), WEIGHTS(.4f, .3f, .2f, .1f), IDS(1, 7, 30, 4),
		WEIGHTS(.3f, nan, .2f, .1f), &d) && isinf(d.abs) && d.col == 0, "a NaN on one side");
	tap_ok(!weights_differ(IDS(7, 7, 1, 4), WEIGHTS(.4f, .3f, .2f, .1f), IDS(7, 7, 1, 4),
		WEIGHTS(.3f, .4f, .2f, .1f), &d), "an expert that comes twice, its weights in another order");
	tap_ok(!weights_differ(IDS(7, 7, 7, 4), WEIGHTS(nan, 0, -0.0f, .1f), IDS(4, 7, 7, 7),
		WEIGHTS(.1f, -0.0f, nan, 0), &d), "an expert that comes thrice, NaN and zeros among its weights");
}

/* ---- names of other engines ---- */

static bool maps_to(const char *map, const char *name, const char *want)
{
	char got[100];
	bool is = map_name(map, name, strlen(name), got, sizeof got);

	return want ? is && strcmp(got, want) == 0 : !is;
}

static void test_maps(void)
{
	struct ds_err err;
	char small[4];

	tap_ok(maps_to("a.*.b=layer.*.q", "a.12.b", "layer.12.q") && maps_to("a.*.b=layer.*.q", "a.12.c", NULL) &&
		maps_to("*.h.*.out=*/layer.*.out", "p64.h.3.out", "p64/layer.3.out") && maps_to("x=y", "x", "y") &&
		maps_to("x=y", "xx", NULL) && maps_to("*=z.*", "", "z.") && maps_to("a*b*=*|*", "aXbbY", "X|bY") &&
		maps_to("*a=*", "bcaxa", "bcax") && maps_to("*.*=*", "a.b.c", "a"), "maps fill their stars in");
	tap_ok(!map_name("*=*", "long", 4, small, sizeof small) && map_name("*=*", "abc", 3, small, sizeof small),
		"a name that does not fit is no match");
	tap_ok(!map_check("a*=b*", &err) && map_check("a", &err) == DS_USAGE && map_check("=b", &err) == DS_USAGE &&
		map_check("a=", &err) == DS_USAGE && map_check("a=*", &err) == DS_USAGE &&
		map_check("*********=x", &err) == DS_USAGE, "maps are checked");
}

/* ---- meta ---- */

static bool near_tenth(void *ctx, const char *path, double a, double b)
{
	(void)ctx, (void)path;
	return fabs(a - b) <= 0.1;
}

static bool skip_t(const char *in, const char *key, size_t n)
{
	(void)in;
	return n == 1 && *key == 't';
}

/* Two maps in msgpack, written by hand. */
static bool differ_at(const char *a, size_t n, const char *b, size_t m, const char *path)
{
	struct meta_compare how = { .skip = skip_t, .near = near_tenth };
	struct meta_difference d;
	struct meta_doc *x, *y;
	struct ds_err err;
	bool differs;

	if (meta_parse(&x, (const uint8_t *)a, n, &err) || meta_parse(&y, (const uint8_t *)b, m, &err))
		tap_bail("%s", err.text);
	differs = meta_differ(meta_root(x), meta_root(y), &how, &d);
	meta_doc_free(x);
	meta_doc_free(y);
	return path ? differs && strcmp(d.path, path) == 0 : !differs;
}

#define DIFFER_AT(a, b, path) differ_at(a, sizeof(a) - 1, b, sizeof(b) - 1, path)

static void test_meta(void)
{
	tap_ok(DIFFER_AT("\x82\xa1x\x01\xa1y\x02", "\x82\xa1y\x02\xa1x\xcc\x01", NULL),
		"keys in another order, widths");
	tap_ok(DIFFER_AT("\x81\xa1x\x01", "\x81\xa1x\x02", "x"), "another number");
	tap_ok(DIFFER_AT("\x81\xa1x\xff", "\x81\xa1x\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "x"), "-1 is not 2^64-1");
	tap_ok(DIFFER_AT("\x81\xa1t\x01", "\x81\xa1t\x02", NULL), "a key that is left out");
	tap_ok(DIFFER_AT("\x81\xa1x\xca\x3f\x80\x00\x00", "\x81\xa1x\xca\x3f\x81\x00\x00", NULL),
		"1 and 1.008 are near");
	tap_ok(DIFFER_AT("\x81\xa1x\xca\x3f\x80\x00\x00", "\x81\xa1x\x02", "x"), "1 and 2 are not");
	tap_ok(DIFFER_AT("\x81\xa1x\x93\x01\x02\x03", "\x81\xa1x\x93\x01\x05\x03", "x[1]"), "an element");
	tap_ok(DIFFER_AT("\x81\xa1x\x92\x01\x02", "\x81\xa1x\x91\x01", "x"), "a shorter array");
	tap_ok(DIFFER_AT("\x81\xa1x\x81\xa1y\xa1" "a", "\x81\xa1x\x81\xa1y\xa1" "b", "x.y"), "a text within");
	tap_ok(DIFFER_AT("\x80", "\x81\xa1x\x01", "x") && DIFFER_AT("\x81\xa1x\x01", "\x80", "x"), "a key on one side");
	tap_ok(DIFFER_AT("\x80", "\x81\xa1x\xc0", NULL), "nil counts as absent");
	tap_ok(DIFFER_AT("\x82\xa1x\x01\xa1x\x02", "\x82\xa1x\x01\xa1x\x03", NULL),
		"of a key that comes twice the first counts");
}

/* ---- tensors that are cut into several frames ---- */

enum { WIDE = 1 << 18, TALL = 70 }; /* rows of 1 MiB */

static void test_split(void)
{
	static const struct point_rows segs[] = { { .stream = 7, .first = 100, .count = 40 },
		{ .stream = 9, .first = 5, .count = 30 } };
	struct point p = { .name = "out", .layered = true, .layer = 3 };
	float *data = mem_calloc((size_t)WIDE * TALL, sizeof *data);
	struct point_data d = { .point = &p, .type = DT_F32, .data = data, .cols = WIDE, .segs = segs,
		.seg_count = 2 };
	struct meta_builder *b = meta_new();
	struct frame_writer *w;
	struct frame_reader *r;
	enum frame_event ev;
	struct frame *f;
	struct point_frame got[2];
	struct point_rows rows[2][2];
	struct ds_err err;
	size_t n = 0, right = 0;
	int fd = memfd_create("split", MFD_CLOEXEC);

	for (size_t i = 0; i < TALL; i++)
		data[i * WIDE] = (float)i;
	if (frame_writer_new(&w, fd, "split", &err) || point_write(w, b, &d, NULL, &err) ||
		frame_write_end(w, &err) || lseek(fd, 0, SEEK_SET) || frame_reader_new(&r, fd, "split", 0, &err))
		tap_bail("cannot write: %s", err.text);
	while (!frame_reader_next(r, &ev, &f, &err) && ev != FRAME_EOF)
		if (ev == FRAME_BODY && point_frame_is(f) && n < 2) {
			if (point_frame_get(f, &got[n], &err) || frame_check_payload(f, &err))
				tap_bail("%s", err.text);
			for (size_t i = 0; i < 2; i++)
				rows[n][i] = point_rows_at(f, i);
			for (size_t i = 0; i < got[n].rows; i++)
				right += ((float *)(void *)f->data)[i * WIDE] == (float)(i + (n ? 64 : 0));
			n++;
		}
	tap_ok(n == 2 && got[0].rows == 64 && got[1].rows == 6 && right == TALL && got[0].segs == 2 &&
		got[1].segs == 1, "a tensor of 70 MiB becomes two frames");
	tap_ok(rows[0][0].stream == 7 && rows[0][0].first == 100 && rows[0][0].count == 40 && rows[0][1].first == 5 &&
		rows[0][1].count == 24 && rows[1][0].stream == 9 && rows[1][0].first == 29 && rows[1][0].count == 6,
		"a segment is cut between them");
	frame_reader_free(r);
	frame_writer_free(w);
	meta_free(b);
	free(data);
	close(fd);
}

int main(void)
{
	test_split();
	test_map();
	test_ranges();
	test_points();
	test_settle();
	test_rows();
	test_chosen();
	test_maps();
	test_meta();
	return tap_done();
}
