"""Sentences in scripts whose letters lower case and accents are not for."""

TEXTS = {
    "korean": "한국어 문장을 읽는 모델은 조선말도 읽는다",
    "japanese": "がんばってパーティーでピアノをひいた ガギグゲゴ",
    "hindi": "हिन्दी में ज़्यादा पढ़ने की ज़रूरत है",
    "bengali": "বাংলা ভাষার কোনো শব্দ হারায় না",
    "thai": "ที่นี่ ไม่มี ปัญหา น้ำ",
    "arabic": "قَرَأَ الطَّالِبُ آخِرَ كِتَابٍ",
    "hebrew": "בְּרֵאשִׁית בָּרָא אֱלֹהִים",
    "tamil": "தமிழ் மொழி பேசுகிறோம்",
}
