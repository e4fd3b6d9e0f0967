/*
 * UTF-8: what every text that comes in is checked for, and steps through it.
 */
#ifndef DS_BASE_UTF8_H
#define DS_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the valid character at p[0 .. n), n > 0; 0 where there is none (overlong forms, surrogates, over U+10FFFF,
 * cut ones). */
size_t utf8_char(const char *p, size_t n);
/* True if all of it is UTF-8; else *bad (which may be NULL) is the offset of the first byte that is not. */
bool utf8_valid(const char *p, size_t n, size_t *bad);
/* The character at p in text known to be valid; *len its bytes. */
uint32_t utf8_get(const char *p, size_t *len);
/* Writes c (a scalar value) to dst; its bytes. */
size_t utf8_put(uint32_t c, char dst[4]);
/* Characters in valid text. */
size_t utf8_count(const char *p, size_t n);
/* Offset of character i of valid text, n if it has fewer. */
size_t utf8_offset(const char *p, size_t n, size_t i);

#endif
