/*
 * What a store holds: items, each found by a 128-bit key, with a meta map that says what it is and a payload.
 *
 * Stored and sent alike, an item is one frame of type `store` with op "put" (ds-frame(5)), so that a segment file, a
 * value in Redis and a reply on a socket are read by the same code and by ds-frame.  Its meta has
 *
 *   op "put"   key (32 hex digits)   size: bytes of the payload before its padding   at, expires: ns since 1970
 *   planes: bytes of an element, where the payload's bytes were taken apart by place before compression
 *   xxh: of the payload as a frame reader gives it: not compressed, padded, planes still apart
 *
 * and whatever its writer has to say: of a KV block that is block.h, of a value of the Redis front its name.
 */
#ifndef DS_STORE_ITEM_H
#define DS_STORE_ITEM_H

#include <string.h>

#include "frame/frame.h"

enum {
	STORE_KEY_BYTES = 16, STORE_KEY_HEX = 33, /* with its NUL */
	STORE_META_MAX = 16 << 10,                /* of one item, packed */
};

/* Of content: a hash of all that the payload depends on. */
struct store_key { uint8_t b[STORE_KEY_BYTES]; };

static inline bool store_key_equal(const struct store_key *a, const struct store_key *b)
{
	return memcmp(a->b, b->b, sizeof(a->b)) == 0;
}
void store_key_hex(const struct store_key *k, char hex[STORE_KEY_HEX]);
bool store_key_parse(const char *hex, size_t n, struct store_key *k); /* false: not 32 digits */

struct store_item {
	struct store_key key;
	uint64_t size;           /* of the payload, plain, without padding */
	uint64_t at_ns;          /* when it was put */
	uint64_t expires_ns;     /* 0: never */
	uint64_t xxh;            /* of the payload before compression, planes apart, padded */
	unsigned planes;         /* 0: the bytes lie as they are */
	bool zstd;
	struct meta meta;        /* the whole map */
	const uint8_t *meta_raw; /* [meta_len] packed */
	uint32_t meta_len;
	uint32_t stored;         /* bytes of the payload as it lies there, padding included */
};

/* Reads and checks what a frame says of its item; the frame's meta must stay.  DS_DATA. */
int store_item_get(const struct frame *f, struct store_item *item, struct ds_err *err);
/* Writes the keys above (but xxh, which the frame writer adds) to b. */
void store_item_put(struct meta_builder *b, const struct store_item *item);
extern const char *const store_item_keys[]; /* ended by NULL: those, xxh, and the padding */
bool store_item_expired(const struct store_item *item, uint64_t now_ns);

/* ---- payloads (payload.c) ---- */

/* What was put, taken apart: data [round_up(size, 64)] is the first byte of each element [size / element], then the
 * second of each, and so on, then what is left over, then zeros.  element at least 2. */
void store_payload_split(unsigned element, const struct iovec *iov, int iovs, size_t size, uint8_t *data);
/* From a payload as a frame reader gives it to what was put, item->size bytes. */
void store_item_plain(const struct store_item *item, const uint8_t *data, void *dst);
/* From a payload as it is stored [item->stored], with FRAME_ZSTD, to as a frame reader gives it,
 * [round_up(item->size, 64)].  False: it is not what it should be, or no memory. */
bool store_item_decode(const struct store_item *item, const uint8_t *stored, uint8_t *data);

#endif
