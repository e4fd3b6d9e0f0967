/*
 * Writing JSON into a growing buffer.  Reading is jansson's job.
 */
#ifndef DS_BASE_JSON_H
#define DS_BASE_JSON_H

#include "base/mem.h"

/* Commas are placed by the writer; nest at most 32 deep. */
struct jw {
	struct buf *b;
	int depth;
	bool first[32], after_key;
};
void jw_init(struct jw *w, struct buf *b);
void jw_obj(struct jw *w);   void jw_obj_end(struct jw *w);
void jw_arr(struct jw *w);   void jw_arr_end(struct jw *w);
void jw_key(struct jw *w, const char *key);
void jw_str(struct jw *w, const char *s);
void jw_strn(struct jw *w, const char *s, size_t n); /* bytes that are no UTF-8 become U+FFFD */
void jw_int(struct jw *w, int64_t v);
void jw_uint(struct jw *w, uint64_t v);
/* shortest text that reads back equal as a double; NaN and infinities become null */
void jw_real(struct jw *w, double v);
void jw_bool(struct jw *w, bool v);
void jw_null(struct jw *w);
void jw_raw(struct jw *w, const char *json, size_t n); /* one value that is JSON already */

/* A key with its value. */
void jw_put_uint(struct jw *w, const char *key, uint64_t v);
void jw_put_real(struct jw *w, const char *key, double v);
void jw_put_str(struct jw *w, const char *key, const char *s); /* bytes that are no UTF-8 become U+FFFD */
void jw_put_hex(struct jw *w, const char *key, uint64_t v);    /* sixteen digits */

#endif
