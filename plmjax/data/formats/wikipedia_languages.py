"""Codes of the Wikipedias, and the headings of sections without running text."""

CODES = frozenset(
    "aa ab ace ady af ak als alt am ami an ang ann anp ar arc ary arz as ast atj av avk awa ay az azb ba ban bar "
    "bat-smg bbc bcl bdr be be-tarask be-x-old bew bg bh bi bjn blk bm bn bo bpy br bs btm bug bxr ca cbk-zam cdo "
    "ce ceb ch cho chr chy ckb co cr crh cs csb cu cv cy da dag de dga din diq dk dsb dtp dty dv dz ee el eml en "
    "eo es et eu ext fa fat ff fi fiu-vro fj fo fon fr frp frr fur fy ga gag gan gcr gd gl glk gn gom gor got gpe "
    "gsw gu guc gur guw gv ha hak haw he hi hif ho hr hsb ht hu hy hyw hz ia iba id ie ig igl ii ik ilo inh io is "
    "it iu ja jam jbo jv ka kaa kab kbd kbp kcg kg kge ki kj kk kl km kn knc ko koi kr krc ks ksh ku kus kv kw ky "
    "la lad lb lbe lez lfn lg li lij lld lmo ln lo lrc lt ltg lv lzh mad mai map-bms mdf mg mh mhr mi min mk ml "
    "mn mni mnw mo mos mr mrj ms mt mus mwl my myv mzn na nah nan nap nb nds nds-nl ne new ng nia nl nn no nov "
    "nqo nr nrm nso nup nv ny oc olo om or os pa pag pam pap pcd pcm pdc pfl pi pih pl pms pnb pnt ps pt pwn qu "
    "rm rmy rn ro roa-rup roa-tara rsk ru rue rup rw sa sah sat sc scn sco sd se sg sgs sh shi shn shy si sk skr "
    "sl sm smn sn so sq sr srn ss st stq su sv sw syl szl szy ta tay tcy tdd te tet tg th ti tig tk tl tly tn to "
    "tpi tr trv ts tt tum tw ty tyv udm ug uk ur uz ve vec vep vi vls vo vro wa war wo wuu xal xh xmf yi yo yue "
    "za zea zgh zh zh-classical zh-min-nan zh-yue zu".split()
)
"""The codes of the Wikipedias (meta.wikimedia.org/wiki/List_of_Wikipedias), with former codes that still work in links.
The title of a page cannot begin with a code and a colon."""

_END_MATTER = """
    References|External links|External link|See also|Further reading|Notes|Bibliography|Sources|Footnotes|Citations
    Einzelnachweise|Weblinks|Weblink|Siehe auch|Quellen|Anmerkungen|Fußnoten|Nachweise|Belege|Quellenangaben
    Références|Liens externes|Lien externe|Voir aussi|Bibliographie|Annexes|Articles connexes|Article connexe
    Referencias|Enlaces externos|Véase también|Bibliografía|Notas|Fuentes|Lecturas adicionales
    Referências|Ligações externas|Ver também|Bibliografia|Fontes|Leitura adicional
    Note|Collegamenti esterni|Voci correlate|Altri progetti
    Referenties|Externe links|Externe link|Zie ook|Noten|Bronnen|Voetnoten|Bronvermelding|Bronnen, noten en referenties
    Przypisy|Linki zewnętrzne|Zobacz też|Uwagi|Źródła
    Примечания|Ссылки|См. также|Источники|Комментарии|Сноски
    Примітки|Посилання|Див. також|Джерела|Виноски
    Източници|Външни препратки|Вижте също|Бележки
    Дереккөздер|Сыртқы сілтемелер|Тағы қараңыз
    Referències|Enllaços externs|Vegeu també
    Referencer|Eksterne henvisninger|Se også|Kilder|Noter|Fodnoter|Eksterne lenker|Referanser
    Referenser|Externa länkar|Se även|Källor|Noter|Fotnoter
    Lähteet|Viitteet|Aiheesta muualla|Katso myös
    Παραπομπές|Εξωτερικοί σύνδεσμοι|Δείτε επίσης|Βιβλιογραφία|Πηγές|Σημειώσεις
    Referencie|Externé odkazy|Pozri aj|Zdroje|Poznámky|Iné projekty|Reference|Externí odkazy|Související články
    Jegyzetek|Források|További információk|Lásd még|Referințe|Legături externe|Vezi și|Kaynakça|Dış bağlantılar
    Ayrıca bakınız|Referensi|Pranala luar|Lihat pula|Tham khảo|Liên kết ngoài|Xem thêm|Chú thích
    Ծանոթագրություններ|Արտաքին հղումներ|Տես նաև|Աղբյուրներ
    ማጣቀሻ|ማመሳከሪያ|ዋቢ ምንጭ|የውጭ መያያዣ|የውጭ መያያዣዎች
    مراجع|المراجع|مصادر|المصادر|وصلات خارجية|روابط خارجية|انظر أيضًا|انظر أيضا|اقرأ أيضا|هوامش|ملاحظات
    Izvori|Vanjske poveznice|Vidi još|Sklici|Zunanje povezave|Glej tudi|Viri|Референце|Спољашње везе|Види још|Извори
    Šaltiniai|Nuorodos|Taip pat skaitykite|Išnašos|Atsauces|Ārējās saites|Skatīt arī|Viited|Välislingid|Vaata ka
    Erreferentziak|Kanpo estekak|Ikus, gainera|Véxase tamén|Ligazóns externas|Referencoj|Eksteraj ligiloj|Vidu ankaŭ
    Rujukan|Pautan luar|Lihat juga|Marejeo|Tanbihi|Viungo vya nje|Tilvísanir|Tenglar|Heimildir
    სქოლიო|რესურსები ინტერნეტში|იხილეთ აგრეთვე|حوالہ جات|بیرونی روابط|مزید دیکھیے
    منابع|پیوند به بیرون|جستارهای وابسته|پانویس|הערות שוליים|קישורים חיצוניים|ראו גם|לקריאה נוספת
    তথ্যসূত্র|বহিঃসংযোগ|আরও দেখুন|আরো দেখুন|টীকা|গ্রন্থপঞ্জি
    સંદર્ભ|સંદર્ભો|બાહ્ય કડીઓ|આ પણ જુઓ
    सन्दर्भ|संदर्भ|बाहरी कड़ियाँ|बाहरी कड़ियां|इन्हें भी देखें|टिप्पणियाँ|टीका-टिप्पणी
    संदर्भ आणि नोंदी|बाह्य दुवे|हे सुद्धा पहा|हेही पहा
    ਹਵਾਲੇ|ਬਾਹਰੀ ਲਿੰਕ|ਬਾਹਰੀ ਕੜੀਆਂ|ਇਹ ਵੀ ਵੇਖੋ
    மேற்கோள்கள்|வெளி இணைப்புகள்|வெளியிணைப்புகள்|இவற்றையும் பார்க்க|குறிப்புகள்|உசாத்துணை
    మూలాలు|బయటి లింకులు|బయటి లంకెలు|ఇవి కూడా చూడండి|వనరులు
    ಉಲ್ಲೇಖಗಳು|ಬಾಹ್ಯ ಕೊಂಡಿಗಳು|ಹೊರಗಿನ ಕೊಂಡಿಗಳು|ಇವನ್ನೂ ನೋಡಿ|ಟಿಪ್ಪಣಿಗಳು
    അവലംബം|അവലംബങ്ങൾ|പുറത്തേക്കുള്ള കണ്ണികൾ|പുറം കണ്ണികൾ|ഇതും കാണുക|കുറിപ്പുകൾ
    ကိုးကား|ပြင်ပလင့်ခ်များ|ပြင်ပလင့်များ|ကြည့်ရန်
    อ้างอิง|แหล่งข้อมูลอื่น|ดูเพิ่ม|เชิงอรรถ
    脚注|出典|参考文献|関連項目|外部リンク|注釈|関連文献
    각주|참고 문헌|같이 보기|외부 링크|외부 고리|출처
    参考文献|參考文獻|外部链接|外部連結|外部鏈接|参见|參見|注释|註釋|注解|註解|参考资料|參考資料|资料来源|資料來源
    相关条目|相關條目|延伸阅读|延伸閱讀|腳註
"""
_LITERATURE = """
    Literatur|Literatura|Литература|Література|Әдебиет|Գրականություն|Literatúra|Literatuur|Litteratur|Irodalom
    Kirjallisuutta|Kirjallisuus
"""


def _names(table: str) -> frozenset[str]:
    return frozenset(name.strip().casefold() for line in table.split("\n") for name in line.split("|")) - {""}


END_MATTER = _names(_END_MATTER)
"""Headings of sections of references and links, in lower case."""
LITERATURE = _names(_LITERATURE)
"""Headings of sections that list books, or tell about the literature of a country; only the lists are left out."""
