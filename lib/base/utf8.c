#include "base/utf8.h"

static bool is_tail(unsigned char c)
{
	return (c & 0xc0) == 0x80;
}

size_t utf8_char(const char *p, size_t n)
{
	const unsigned char *s = (const unsigned char *)p;

	if (s[0] < 0x80)
		return 1;
	if (s[0] < 0xc2 || s[0] > 0xf4 || n < 2 || !is_tail(s[1]))
		return 0;
	if (s[0] < 0xe0)
		return 2;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || n < 3 || !is_tail(s[2]))
		return 0;
	if (s[0] < 0xf0)
		return 3;
	if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f) || n < 4 || !is_tail(s[3]))
		return 0;
	return 4;
}

bool utf8_valid(const char *p, size_t n, size_t *bad)
{
	for (size_t i = 0; i < n; ) {
		size_t len = utf8_char(p + i, n - i);
		if (!len) {
			if (bad)
				*bad = i;
			return false;
		}
		i += len;
	}
	return true;
}

uint32_t utf8_get(const char *p, size_t *len)
{
	const unsigned char *s = (const unsigned char *)p;

	if (s[0] < 0x80) {
		*len = 1;
		return s[0];
	}
	if (s[0] < 0xe0) {
		*len = 2;
		return (uint32_t)(s[0] & 0x1f) << 6 | (s[1] & 0x3f);
	}
	if (s[0] < 0xf0) {
		*len = 3;
		return (uint32_t)(s[0] & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f);
	}
	*len = 4;
	return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3f) << 12 | (uint32_t)(s[2] & 0x3f) << 6 |
		(s[3] & 0x3f);
}

size_t utf8_put(uint32_t c, char dst[4])
{
	if (c < 0x80) {
		dst[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		dst[0] = (char)(0xc0 | c >> 6);
		dst[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		dst[0] = (char)(0xe0 | c >> 12);
		dst[1] = (char)(0x80 | (c >> 6 & 0x3f));
		dst[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	dst[0] = (char)(0xf0 | c >> 18);
	dst[1] = (char)(0x80 | (c >> 12 & 0x3f));
	dst[2] = (char)(0x80 | (c >> 6 & 0x3f));
	dst[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

size_t utf8_count(const char *p, size_t n)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i++)
		count += !is_tail((unsigned char)p[i]);
	return count;
}

size_t utf8_offset(const char *p, size_t n, size_t i)
{
	size_t off = 0;

	while (i-- && off < n) {
		size_t len;
		utf8_get(p + off, &len);
		off += len;
	}
	return off;
}
