/*
 * The bounded walk over a packed map, before a general parser sees it: msgpack-c takes the element counts that it
 * reads at their word and would reserve gigabytes for five bytes.
 */
#include <string.h>

#include "base/utf8.h"
#include "frame/internal.h"

enum kind { K_BAD, K_PLAIN, K_STR, K_BYTES, K_ARRAY, K_MAP };

struct item {
	enum kind kind;
	size_t head;  /* bytes before the content */
	uint64_t len; /* bytes of content, or elements */
};

/* First bytes 0xc0 .. 0xdf: kind, width of the length that follows, content bytes that come without or beyond it. */
static const struct { uint8_t kind, width, more; } wide[32] = {
	{ K_PLAIN, 0, 0 }, { K_BAD, 0, 0 }, { K_PLAIN, 0, 0 }, { K_PLAIN, 0, 0 },    /* nil, -, false, true */
	{ K_BYTES, 1, 0 }, { K_BYTES, 2, 0 }, { K_BYTES, 4, 0 },                     /* bin */
	{ K_BYTES, 1, 1 }, { K_BYTES, 2, 1 }, { K_BYTES, 4, 1 },                     /* ext */
	{ K_PLAIN, 0, 4 }, { K_PLAIN, 0, 8 },                                        /* float */
	{ K_PLAIN, 0, 1 }, { K_PLAIN, 0, 2 }, { K_PLAIN, 0, 4 }, { K_PLAIN, 0, 8 },  /* uint */
	{ K_PLAIN, 0, 1 }, { K_PLAIN, 0, 2 }, { K_PLAIN, 0, 4 }, { K_PLAIN, 0, 8 },  /* int */
	{ K_BYTES, 0, 2 }, { K_BYTES, 0, 3 }, { K_BYTES, 0, 5 }, { K_BYTES, 0, 9 }, { K_BYTES, 0, 17 }, /* fixext */
	{ K_STR, 1, 0 }, { K_STR, 2, 0 }, { K_STR, 4, 0 },
	{ K_ARRAY, 2, 0 }, { K_ARRAY, 4, 0 }, { K_MAP, 2, 0 }, { K_MAP, 4, 0 },
};

static struct item item_at(const uint8_t *p, size_t n)
{
	unsigned b = p[0], width;
	struct item it = { .kind = K_PLAIN, .head = 1 };

	if (b <= 0x7f || b >= 0xe0)
		return it;
	if (b < 0xc0) {
		it.kind = b < 0x90 ? K_MAP : b < 0xa0 ? K_ARRAY : K_STR;
		it.len = b & (b < 0xa0 ? 15 : 31);
		return it;
	}
	it.kind = (enum kind)wide[b - 0xc0].kind;
	it.len = wide[b - 0xc0].more;
	width = wide[b - 0xc0].width;
	if (width >= n) {
		it.kind = K_BAD;
		return it;
	}
	it.head += width;
	if (width == 1)
		it.len += p[1];
	else if (width == 2)
		it.len += get_be16(p + 1);
	else if (width == 4)
		it.len += get_be32(p + 1);
	return it;
}

struct walk {
	const uint8_t *p;
	size_t n, at;
	int depth;
	struct { uint64_t left; bool map; } open[META_DEPTH];
};

static int walk_item(struct walk *w, bool root, bool key, struct ds_err *err)
{
	struct item it;

	if (w->at == w->n)
		return err_set(err, DS_DATA, "meta ends within a value");
	it = item_at(w->p + w->at, w->n - w->at);
	if (it.kind == K_BAD)
		return err_set(err, DS_DATA, "meta has no msgpack value at byte %zu", w->at);
	if (key && it.kind != K_STR)
		return err_set(err, DS_DATA, "meta has a key that is no string at byte %zu", w->at);
	if (root && it.kind != K_MAP)
		return err_set(err, DS_DATA, "meta is no map");
	w->at += it.head;
	if (it.kind == K_ARRAY || it.kind == K_MAP) {
		uint64_t elements = it.len << (it.kind == K_MAP);

		if (elements > w->n - w->at)
			return err_set(err, DS_DATA, "meta has an array or map of %llu elements with %zu bytes left",
				(unsigned long long)elements, w->n - w->at);
		if (w->depth == META_DEPTH)
			return err_set(err, DS_DATA, "meta is nested deeper than %d", META_DEPTH);
		w->open[w->depth].left = elements;
		w->open[w->depth++].map = it.kind == K_MAP;
		return 0;
	}
	if (it.len > w->n - w->at)
		return err_set(err, DS_DATA, "meta ends within a value of %llu bytes", (unsigned long long)it.len);
	if (it.kind == K_STR && !utf8_valid((const char *)w->p + w->at, (size_t)it.len, NULL))
		return err_set(err, DS_DATA, "meta has a string that is no UTF-8 at byte %zu", w->at);
	w->at += (size_t)it.len;
	return 0;
}

int meta_walk(const uint8_t *p, size_t n, struct ds_err *err)
{
	struct walk w = { .p = p, .n = n };
	bool key;
	int rc;

	if (n > FRAME_META_MAX)
		return err_set(err, DS_DATA, "meta has %zu bytes, more than %d", n, FRAME_META_MAX);
	rc = walk_item(&w, true, false, err);
	while (!rc && w.depth) {
		int d = w.depth - 1;

		if (w.open[d].left == 0) {
			w.depth = d;
			continue;
		}
		key = w.open[d].map && w.open[d].left % 2 == 0;
		w.open[d].left--;
		rc = walk_item(&w, false, key, err);
	}
	if (!rc && w.at != n)
		rc = err_set(err, DS_DATA, "meta has %zu bytes after its map", n - w.at);
	return rc;
}
