/* Checked reading of one key. */
#include "frame/messages_impl.h"

#include <stdarg.h>
#include <stdio.h>

int message_bad(const struct frame *f, const char *key, struct ds_err *err, const char *fmt, ...)
{
	char why[200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	return err_set(err, DS_DATA, "frame %llu (%s): '%s' %s", (unsigned long long)f->number,
		frame_type_name(f->type), key, why);
}

int message_uint(const struct frame *f, struct meta m, const char *key, bool must, uint64_t min, uint64_t max,
	uint64_t *v, struct ds_err *err)
{
	uint64_t u;

	switch (meta_uint(m, key, &u)) {
	case META_ABSENT:
		return must ? message_bad(f, key, err, "is missing") : 0;
	case META_TYPE:
		return message_bad(f, key, err, "is not a whole number");
	case META_OK:
		break;
	}
	if (u < min || u > max)
		return message_bad(f, key, err, "is %llu, not within %llu to %llu", (unsigned long long)u,
			(unsigned long long)min, (unsigned long long)max);
	*v = u;
	return 0;
}

int message_real(const struct frame *f, struct meta m, const char *key, double min, double max, double *v,
	struct ds_err *err)
{
	double d;

	switch (meta_real(m, key, &d)) {
	case META_ABSENT:
		return 0;
	case META_TYPE:
		return message_bad(f, key, err, "is not a number");
	case META_OK:
		break;
	}
	if (!(d >= min && d <= max))
		return message_bad(f, key, err, "is %g, not within %g to %g", d, min, max);
	*v = d;
	return 0;
}

int message_bool(const struct frame *f, struct meta m, const char *key, bool *v, struct ds_err *err)
{
	return meta_bool(m, key, v) == META_TYPE ? message_bad(f, key, err, "is not true or false") : 0;
}

int message_cstr(const struct frame *f, const char *key, bool must, char *dst, size_t cap, struct ds_err *err)
{
	switch (meta_cstr(f->meta, key, dst, cap)) {
	case META_ABSENT:
		return must ? message_bad(f, key, err, "is missing") : 0;
	case META_TYPE:
		return message_bad(f, key, err, "is not a text of acceptable length");
	case META_OK:
		break;
	}
	return 0;
}

int message_array(const struct frame *f, struct meta m, const char *key, size_t max, struct meta *a, size_t *n,
	struct ds_err *err)
{
	*n = 0;
	switch (meta_array(m, key, a, n)) {
	case META_ABSENT:
		return 0;
	case META_TYPE:
		return message_bad(f, key, err, "is not an array");
	case META_OK:
		break;
	}
	if (*n > max)
		return message_bad(f, key, err, "has %zu entries, more than %zu", *n, max);
	return 0;
}

int message_map(const struct frame *f, const char *key, struct meta *m, struct ds_err *err)
{
	*m = (struct meta){ 0 };
	return meta_map(f->meta, key, m) == META_TYPE ? message_bad(f, key, err, "is not a map") : 0;
}
