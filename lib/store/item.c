#include "store/item.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/mem.h"

enum { PLANES_MAX = 16 };

void store_key_hex(const struct store_key *k, char hex[STORE_KEY_HEX])
{
	static const char digit[] = "0123456789abcdef";

	for (size_t i = 0; i < STORE_KEY_BYTES; i++) {
		hex[2 * i] = digit[k->b[i] >> 4];
		hex[2 * i + 1] = digit[k->b[i] & 15];
	}
	hex[STORE_KEY_HEX - 1] = 0;
}

static int digit_of(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool store_key_parse(const char *hex, size_t n, struct store_key *k)
{
	if (n != STORE_KEY_HEX - 1)
		return false;
	for (size_t i = 0; i < STORE_KEY_BYTES; i++) {
		int a = digit_of(hex[2 * i]), b = digit_of(hex[2 * i + 1]);

		if (a < 0 || b < 0)
			return false;
		k->b[i] = (uint8_t)(a << 4 | b);
	}
	return true;
}

static int bad(const struct frame *f, const char *what, struct ds_err *err)
{
	return err_set(err, DS_DATA, "frame %" PRIu64 " is no item of a store: %s", f->number, what);
}

static int get_numbers(const struct frame *f, struct store_item *item, struct ds_err *err)
{
	uint64_t planes = 0;

	if (meta_uint(f->meta, "size", &item->size) != META_OK || item->size > UINT32_MAX - FRAME_ALIGN)
		return bad(f, "'size' is not what it should be", err);
	if (meta_uint(f->meta, "at", &item->at_ns) == META_TYPE ||
		meta_uint(f->meta, "expires", &item->expires_ns) == META_TYPE)
		return bad(f, "'at' or 'expires' is no time", err);
	if (meta_uint(f->meta, "xxh", &item->xxh) != META_OK && item->size)
		return bad(f, "it has no 'xxh'", err);
	if (meta_uint(f->meta, "planes", &planes) == META_TYPE || planes == 1 || planes > PLANES_MAX)
		return bad(f, "'planes' is not what it should be", err);
	item->planes = (unsigned)planes;
	return 0;
}

int store_item_get(const struct frame *f, struct store_item *item, struct ds_err *err)
{
	const char *s;
	size_t n;
	int rc;

	*item = (struct store_item){ .zstd = (f->flags & FRAME_ZSTD) != 0, .meta = f->meta, .meta_raw = f->meta_raw,
		.meta_len = f->meta_len, .stored = f->data_len };
	if (f->type != FRAME_STORE || (f->flags & FRAME_MORE))
		return bad(f, "another kind of frame", err);
	if (f->meta_len > STORE_META_MAX)
		return bad(f, "its meta is too long", err);
	if (meta_str(f->meta, "op", &s, &n) != META_OK || n != 3 || memcmp(s, "put", 3) != 0)
		return bad(f, "its 'op' is not 'put'", err);
	if (meta_str(f->meta, "key", &s, &n) != META_OK || !store_key_parse(s, n, &item->key))
		return bad(f, "its 'key' is not 32 hexadecimal digits", err);
	rc = get_numbers(f, item, err);
	if (rc)
		return rc;
	if (item->zstd ? !item->size : item->stored != round_up((size_t)item->size, FRAME_ALIGN))
		return bad(f, "its payload is not of the size that it says", err);
	return 0;
}

const char *const store_item_keys[] = { "op", "key", "size", "at", "expires", "planes", "xxh", "_", NULL };

void store_item_put(struct meta_builder *b, const struct store_item *item)
{
	char hex[STORE_KEY_HEX];

	store_key_hex(&item->key, hex);
	meta_put_cstr(b, "op", "put");
	meta_put_cstr(b, "key", hex);
	meta_put_uint(b, "size", item->size);
	meta_put_uint(b, "at", item->at_ns);
	if (item->expires_ns)
		meta_put_uint(b, "expires", item->expires_ns);
	if (item->planes)
		meta_put_uint(b, "planes", item->planes);
}

bool store_item_expired(const struct store_item *item, uint64_t now_ns)
{
	return item->expires_ns && item->expires_ns <= now_ns;
}
