#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

bool mem_mul(size_t a, size_t b, size_t *out)
{
	return !__builtin_mul_overflow(a, b, out);
}

void *mem_calloc(size_t n, size_t size)
{
	return calloc(n ? n : 1, size ? size : 1);
}

void *mem_array(size_t n, size_t size)
{
	return mem_realloc(NULL, n, size);
}

void *mem_copy(const void *p, size_t n)
{
	void *q = mem_array(n, 1);

	if (q && n)
		memcpy(q, p, n);
	return q;
}

void *mem_realloc(void *p, size_t n, size_t size)
{
	size_t bytes;

	if (!mem_mul(n, size, &bytes))
		return NULL;
	return realloc(p, bytes ? bytes : 1);
}

void mem_huge(void *p, size_t bytes)
{
#ifdef MADV_HUGEPAGE
	(void)madvise(p, bytes, MADV_HUGEPAGE);
#else
	(void)p, (void)bytes;
#endif
}

void mem_huge_now(void *p, size_t bytes)
{
	mem_huge(p, bytes);
#ifdef MADV_COLLAPSE
	(void)madvise(p, bytes, MADV_COLLAPSE);
#endif
}

void *mem_aligned(size_t bytes)
{
	void *p;

	if (bytes > SIZE_MAX - 64)
		return NULL;
	bytes = round_up(bytes ? bytes : 1, 64);
	p = aligned_alloc(64, bytes);
	if (p)
		memset(p, 0, bytes);
	return p;
}

/* Room for n more bytes and the NUL. */
static bool buf_room(struct buf *b, size_t n)
{
	size_t cap = b->cap ? b->cap : 64;
	char *p;

	if (b->nomem || n > SIZE_MAX / 2 - b->len) {
		b->nomem = true;
		return false;
	}
	if (b->len + n + 1 <= b->cap)
		return true;
	while (cap < b->len + n + 1)
		cap *= 2;
	p = realloc(b->p, cap);
	if (!p) {
		b->nomem = true;
		return false;
	}
	b->p = p;
	b->cap = cap;
	return true;
}

void *mem_more(void *p, size_t *cap, size_t n, size_t size)
{
	size_t more = *cap ? 2 * *cap : 64;
	void *q;

	if (n < *cap)
		return p;
	q = mem_realloc(p, more, size);
	if (q)
		*cap = more;
	return q;
}

void buf_add(struct buf *b, const void *p, size_t n)
{
	if (!buf_room(b, n))
		return;
	if (n)
		memcpy(b->p + b->len, p, n);
	b->len += n;
	b->p[b->len] = '\0';
}

void buf_str(struct buf *b, const char *s)
{
	buf_add(b, s, strlen(s));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0 || !buf_room(b, (size_t)n)) {
		b->nomem = true;
		return;
	}
	va_start(ap, fmt);
	vsnprintf(b->p + b->len, (size_t)n + 1, fmt, ap);
	va_end(ap);
	b->len += (size_t)n;
}

void buf_free(struct buf *b)
{
	free(b->p);
	*b = (struct buf){ 0 };
}
