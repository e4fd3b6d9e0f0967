/* Checked reading of one key; shared by messages*.c.  Absent keys leave *v as it is; every error is DS_DATA and names
 * the frame, the key, and the value where there is one to print. */
#ifndef DS_FRAME_MESSAGES_IMPL_H
#define DS_FRAME_MESSAGES_IMPL_H

#include "frame/messages.h"

/* "frame N (type): 'key' ..." */
int message_bad(const struct frame *f, const char *key, struct ds_err *err, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* A whole number in [min, max]; `must`: absence is an error. */
int message_uint(const struct frame *f, struct meta m, const char *key, bool must, uint64_t min, uint64_t max,
	uint64_t *v, struct ds_err *err);
int message_real(const struct frame *f, struct meta m, const char *key, double min, double max, double *v,
	struct ds_err *err);
int message_bool(const struct frame *f, struct meta m, const char *key, bool *v, struct ds_err *err);
/* A text of less than cap bytes. */
int message_cstr(const struct frame *f, const char *key, bool must, char *dst, size_t cap, struct ds_err *err);
/* An array of at most max elements; absent: *n is 0. */
int message_array(const struct frame *f, struct meta m, const char *key, size_t max, struct meta *a, size_t *n,
	struct ds_err *err);
/* A map; absent: empty. */
int message_map(const struct frame *f, const char *key, struct meta *m, struct ds_err *err);

#endif
