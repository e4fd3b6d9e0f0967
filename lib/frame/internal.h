/* Shared by the files of lib/frame only. */
#ifndef DS_FRAME_INTERNAL_H
#define DS_FRAME_INTERNAL_H

#include <msgpack.h>

#include "frame/frame.h"

enum { META_DEPTH = 8 };

/* The bounded walk: p[0..n) is exactly one map and keeps every limit of meta.h.  DS_DATA names the byte. */
int meta_walk(const uint8_t *p, size_t n, struct ds_err *err);
/* Walks, then unpacks into zone; strings point into p, which must live as long as the object. */
int meta_unpack(msgpack_zone *zone, msgpack_object *obj, const uint8_t *p, size_t n, struct ds_err *err);
/* What a builder holds: `pairs` packed key-value pairs without a map header.  DS_BUG or DS_OS if building failed. */
int meta_built(const struct meta_builder *b, const uint8_t **p, size_t *n, size_t *pairs, struct ds_err *err);

/* ---- front.c ---- */

/* What a head says, to f; nothing is taken from f.  DS_DATA, DS_PROTO. */
int front_head(const uint8_t head[FRAME_HEAD_BYTES], struct frame *f, struct ds_err *err);
/* The meta and bin header behind that head agree with it.  DS_DATA. */
int front_meta(const uint8_t head[FRAME_HEAD_BYTES], const uint8_t *meta, const struct frame *f, struct ds_err *err);

struct jw;
void meta_json_value(struct jw *w, const msgpack_object *o); /* any value */

uint32_t crc32_add(uint32_t crc, const void *p, size_t n); /* zlib's CRC-32; start with 0 */

static inline uint16_t get_be16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static inline uint32_t get_be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
static inline uint64_t get_be64(const uint8_t *p) { return (uint64_t)get_be32(p) << 32 | get_be32(p + 4); }
static inline void put_be16(uint8_t *p, unsigned v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }
static inline void put_be32(uint8_t *p, uint32_t v) { put_be16(p, v >> 16); put_be16(p + 2, v & 0xffff); }
static inline void put_be64(uint8_t *p, uint64_t v) { put_be32(p, (uint32_t)(v >> 32)); put_be32(p + 4, (uint32_t)v); }

#endif
